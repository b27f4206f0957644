# Redis with the Redfence module loaded.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p redfence-module

FROM redis:7-bookworm
COPY --from=build /src/target/release/libredfence_module.so /usr/local/lib/libredfence_module.so
CMD ["redis-server", "--loadmodule", "/usr/local/lib/libredfence_module.so", "--appendonly", "yes"]
