# Redfence. `make help` lists the targets. Each installs what it needs on Debian or Ubuntu when it may.

CARGO ?= cargo
SEED ?=
SEEDS ?= 0..1500
MUTANT_SEEDS ?= 0..7000
DURATION ?= 60
PRESET ?= all
CERTS ?= target/certs
HOSTS ?=
# What `make bench` and `make versus` measure.
PRODUCTION := --bin target/production/redfence --module target/production/libredfence_module.so
# Where whatever cannot be done on this machine is noted; `make test` prints it at its end.
export REDFENCE_LEFT_OUT := $(CURDIR)/target/left-out
# For `redfence --version`. Exported, so that every target builds the same program.
export REDFENCE_COMMIT := $(shell scripts/commit)

.PHONY: help run certs quick demo clean-demo fresh test ci check fmt clippy licences advisories build build-release build-production unit lua-test sdk sdk-python browser browser-short docs tutorial conformance sim mutants chaos mixed-fleet fenced-resource drill scale soak interop bench versus machine-versus hostile attack mixed-versions sentinel nightly fuzz images deb chart packaging-check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: build-release $(if $(TLS),certs) ## a Redis with the module and three nodes, until Ctrl-C; TLS=1: with TLS, a password and encrypted peers
	@scripts/run $(if $(TLS),--tls $(CERTS))

certs: ## a certificate authority with certificates for this machine, for a try of TLS (CERTS=target/certs, HOSTS="more names")
	@scripts/install-deps cc
	@scripts/build release redfence-certs
	@$(or $(CARGO_TARGET_DIR),target)/release/redfence-certs $(CERTS) $(HOSTS)

quick: ## a first look: three nodes without a Redis, built in a fraction of the time (no module, not optimised)
	@scripts/install-deps cc redis-cli
	@scripts/build quick redfence
	@REDFENCE_BUILD=quick scripts/run --no-redis

demo: ## the same in short: a few locks and a killed leader, then stops (built as quickly as `make quick`)
	@scripts/install-deps cc libclang redis
	@scripts/build quick redfence-module
	@scripts/build quick redfence
	@REDFENCE_BUILD=quick scripts/run --demo

clean-demo: ## `make demo` in a clean clone with an empty environment, as on a new machine
	@scripts/clean-demo

fresh: ## the same on a machine that has nothing: a minimal Debian root (root, debootstrap)
	@scripts/fresh

test: ## everything CI runs; at the end a list of what this machine could not do
	@mkdir -p target && : > $(REDFENCE_LEFT_OUT)
	@$(MAKE) --no-print-directory check unit lua-test sdk-python browser-short packaging-check clean-demo
	@scripts/left-out

ci: test ## exactly what .ci/run calls

check: fmt clippy licences advisories ## format, lints, licences, advisories

fmt:
	$(CARGO) fmt --all --check

clippy:
	@scripts/install-deps cc libclang
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

licences:
	@scripts/install-deps python
	@scripts/licences

advisories: ## known vulnerabilities of dependencies (cargo-deny or cargo-audit; says so where it cannot be done)
	@scripts/advisories

build: ## debug build of the module and the proxy
	@scripts/install-deps cc libclang
	$(CARGO) build --workspace --locked

build-release:
	@scripts/install-deps cc libclang redis
	@# Apart, or the module would be built with the features the proxy asks of core (Luau).
	@scripts/build release redfence-module
	@scripts/build release redfence

build-production: # as it is packaged: optimised as a whole
	@scripts/install-deps cc libclang redis
	@scripts/build production redfence-module
	@scripts/build production redfence

unit: build ## Rust tests of every crate: golden scripts, properties, conformance, clusters of real processes
	@scripts/install-deps redis
	@scripts/install-deps --optional strace iproute postgres promtool
	@# For tests/mixed_versions.rs. Without optimisation: its speed is of no interest, and it takes half the time.
	$(CARGO) build --locked --config profile.dev.package.redfence.opt-level=0 -p redfence --features next-version --bin redfence-next
	$(CARGO) test --workspace --locked --no-fail-fast

docs: ## the book in target/book, from docs/ (mdbook is installed into target/tools once)
	@scripts/install-deps mdbook
	@PATH="$(CURDIR)/target/tools/bin:$$PATH" mdbook build docs

tutorial: build-release ## runs the programs of docs/tutorial, each in its own language with the library its page names
	scripts/tutorial $(or $(CARGO_TARGET_DIR),target)/release/redfence $(ONLY)

conformance: build ## the conformance suite alone, over every backend
	@scripts/install-deps redis
	$(CARGO) test --locked -p redfence-tests --test conformance

sim: ## the simulator over seeds: make sim, make sim SEED=7, make sim SEEDS=0..10000, TWICE=1 to compare two runs of each
	$(CARGO) run --release --locked -p redfence-tests --bin sim -- $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(TWICE),--twice)

mutants: ## plants every known bug in turn and shows the first seed that finds it (MUTANT_SEEDS=0..7000)
	$(CARGO) run --release --locked -p redfence-tests --features mutants --bin sim -- --mutants --seeds $(MUTANT_SEEDS)

chaos: build-release ## faults on real processes, every answer checked: make chaos, make chaos DURATION=600 SEED=7 PRESET=power
	@scripts/install-deps strace iproute
	$(CARGO) run --release --locked -p redfence-tests --bin chaos -- --preset $(PRESET) --duration $(DURATION) --seed $(or $(SEED),1)

mixed-fleet: ## half unchanged Redlock clients, half LOCK.ACQUIRE, the leader killed every few seconds
	@$(MAKE) chaos PRESET=mixed-fleet

fenced-resource: build-release ## a PostgreSQL row behind a lock, holders paused, writes late: with the fence and without
	@scripts/install-deps postgres
	$(CARGO) run --release --locked -p redfence-tests --bin fenced

drill: build ## redfence drill and fence-sql against a real PostgreSQL and MariaDB (in `make test` MariaDB only where it is installed)
	@scripts/install-deps postgres redis-cli
	@scripts/install-deps mariadb || echo "MariaDB is left out"
	$(CARGO) test --locked -p redfence-tests --test programs -- --nocapture

scale: build-release ## 500,000 held locks, 11,000 connections, a follower a million commands behind
	$(CARGO) run --release --locked -p redfence-tests --bin scale

soak: build-release ## the largest supported load: five nodes, 500,000 locks, 100,000 sessions, faults, a rolling upgrade from release FROM (1), restarts, a backup, a replaced node (an hour; DURATION=600 LOCKS= SESSIONS= CONNECTIONS= WORKERS= NODES=)
	from=$$(scripts/release-build $(or $(FROM),1) release) && $(CARGO) run --release --locked -p redfence-tests --bin soak -- --from "$$from" $(if $(filter command,$(firstword $(origin DURATION))),--duration $(DURATION)) $(if $(LOCKS),--locks $(LOCKS)) $(if $(SESSIONS),--sessions $(SESSIONS)) $(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(NODES),--nodes $(NODES))

interop: ## unchanged lock libraries of other languages against a real cluster: make interop, ONLY=python, ONLY=node/redlock, UPDATE=1
	@scripts/install-deps cc libclang python venv
	$(CARGO) build --release --locked -p redfence
	tests/interop/run --bin $(or $(CARGO_TARGET_DIR),target)/release/redfence $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(if $(UPDATE),--update-docs)

lua-test: ## the Lua library's own tests
	@scripts/install-deps redis python
	lua/tests/run

sdk: build ## the SDKs' own suites against every backend; says what it left out on this machine
	@scripts/install-deps --optional redis python venv postgres
	@scripts/sdk-rust
	@scripts/sdk-python full

sdk-python: build ## the quick part of the Python SDK's suite
	@scripts/sdk-python short

browser: build ## the dashboard in a real browser: every page, live, rights, a killed leader, axe-core, pictures (UPDATE=1 keeps them in the docs)
	@scripts/install-deps chromium node
	@scripts/browser full

browser-short: build ## the quick part of it
	@scripts/install-deps --optional chromium node
	@scripts/browser short

bench: build-production ## lock work against Redis, etcd and ZooKeeper in one run (about half an hour); PART=locks for one part
	@scripts/install-deps etcd || echo "etcd is left out"
	@scripts/install-deps zookeeper || echo "ZooKeeper is left out"
	@scripts/install-deps strace iproute || echo "slow disks and hosts that are cut off are left out"
	$(CARGO) build --release --locked -p redfence-bench
	@# The newest etcd where there is a Go to build it, and Debian's beside it; Debian's alone otherwise.
	target/release/redfence-bench $(PRODUCTION) $$(etcd=$$(scripts/etcd) && echo "--etcd $$etcd") $(or $(PART),all)

versus: build-production ## this build against the pinned baseline (bench/baseline.toml), side by side
	$(CARGO) build --release --locked -p redfence-bench
	target/release/redfence-bench versus $(PRODUCTION) --other "$$(scripts/baseline)" --results target/versus

machine-versus: ## the lock machine alone beside that of the pinned baseline, in one process: speed, and memory of a held lock
	@scripts/install-deps cc
	@scripts/machine-versus

hostile: build ## whatever a client may send, against three nodes: make hostile, make hostile ONLY=glob
	$(CARGO) run --locked -p redfence-tests --bin hostile -- $(if $(ONLY),--only $(ONLY))

attack: ## a cluster with TLS, users and encrypted peers, attacked on every port: make attack, FRAMES=100000 SLOW=1000
	REDFENCE_ATTACK_FRAMES=$(or $(FRAMES),10000000) REDFENCE_ATTACK_SLOW=$(or $(SLOW),5000) \
		$(CARGO) test --locked -p redfence --test attack -- --nocapture

sentinel: build ## three Sentinels and a killed master behind a node, under load
	@scripts/install-deps redis
	$(CARGO) test --locked -p redfence-tests --test sentinel -- --nocapture

mixed-versions: build ## releases side by side: this one, those of tests/releases.toml, and a made-up next one (its program is built first)
	$(CARGO) build --locked -p redfence --features next-version --bin redfence-next
	$(CARGO) test --locked -p redfence-core --features scripts,next-version --test versions
	$(CARGO) test --locked -p redfence-tests --features next-version --test node versions
	REDFENCE_RELEASES=1 $(CARGO) test --locked -p redfence-tests --test mixed_versions -- --nocapture

# What takes too long for every change. Each part is a target of its own; times are of two cores.
#   part             what                                                        takes
#   hostile-all      all of the hostile suite                                    about 10 minutes
#   attack           10 million hostile frames, 5,000 slow connections           about an hour
#   mixed-versions   releases side by side, rolling up and back under load       under a minute, and two minutes to build the next one
#   sim              20,000 seeds; 500 more, each two times                      about 20 minutes
#   chaos            fault runs on real processes                                30 minutes
#   soak             the design's day, cut to half an hour                       35 minutes, and 6 to build release 1
#   packages         make chart, make images, make deb (root, a package mirror)  about 5 minutes, and 10 for release builds and tools
#   fuzz             ten minutes for every target                                about 2 hours
nightly: build ## what takes too long for every change; the Makefile lists its parts and what each takes
	@scripts/timed hostile-all env REDFENCE_HOSTILE=all $(CARGO) test --locked -p redfence-tests --test hostile_cluster -- --nocapture
	@scripts/timed attack $(MAKE) attack
	@scripts/timed mixed-versions $(MAKE) mixed-versions
	@scripts/timed sim $(MAKE) sim SEEDS=0..20000
	@scripts/timed sim-twice $(MAKE) sim SEEDS=20000..20500 TWICE=1
	@scripts/timed chaos $(MAKE) chaos DURATION=1800 SEED=$(or $(SEED),$(shell date +%j))
	@scripts/timed soak $(MAKE) soak DURATION=1800
	@scripts/timed packages $(MAKE) chart images deb
	@scripts/timed fuzz $(MAKE) fuzz DURATION=600

fuzz: ## every fuzz target for a minute each (DURATION=1800 for longer; needs nightly and cargo-fuzz)
	@scripts/fuzz $(DURATION)

images: ## both container images; every service of docker/compose.yml and the pods of the chart started from them without a container engine (root, buildah)
	@scripts/images

deb: ## Debian packages in target/deb; then docs/install.md followed to the letter on three machines that boot systemd (root, debootstrap; TEST=no leaves that out)
	@scripts/deb
	@$(if $(filter no,$(TEST)),:,scripts/deb-test)

chart: ## the Helm chart rendered and validated (helm and kubeconform are built into target/tools once, with Go)
	@scripts/chart

packaging-check: ## the quick part of the tests of packages: unit, compose file, chart, their options
	@mkdir -p target
	@scripts/packaging-check

clean:
	$(CARGO) clean
	rm -rf run redfence-data
