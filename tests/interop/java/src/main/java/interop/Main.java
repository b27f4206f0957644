package interop;

import interop.Library.Check;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Lock libraries for Java, unmodified, against a cluster of Redfence. ../README.md is the contract with the driver. */
public final class Main {
    private Main() {
    }

    private static final int CHECK_S_MAX = 60;

    private static List<Library> libraries() {
        List<Library> all = new ArrayList<>();
        all.add(JedisLock.LIBRARY);
        all.add(LettuceLock.LIBRARY);
        all.addAll(ShedLock.LIBRARIES);
        all.addAll(RedissonLocks.LIBRARIES);
        all.add(RedissonSemaphores.LIBRARY);
        return all;
    }

    public static void main(String[] arguments) {
        if (arguments.length == 1 && arguments[0].equals("list")) {
            libraries().forEach(library -> System.out.println(library.id() + (library.masters() ? "\tredlock" : "")));
            return;
        }
        if (arguments.length == 2 && arguments[0].equals("check")) {
            for (Library library : libraries()) {
                if (library.id().equals(arguments[1])) {
                    runAll(library);
                    System.exit(0); // libraries leave threads behind
                }
            }
        }
        System.err.println("usage: interop list | check <id>");
        System.exit(2);
    }

    private static void runAll(Library library) {
        Trial trial = new Trial(library, addresses("INTEROP_NODES"), addresses("INTEROP_REDLOCK"), System.getenv("INTEROP_CONTROL"));
        List<Check> checks = new ArrayList<>();
        if (library.opener() != null) {
            checks.addAll(Checks.COMMON);
        }
        checks.addAll(library.own());
        if (library.opener() != null) {
            checks.addAll(Failover.COMMON);
        }
        checks.forEach(check -> run(trial, check));
    }

    private static List<String> addresses(String variable) {
        String value = System.getenv(variable);
        return value == null || value.isEmpty() ? List.of() : List.of(value.split(","));
    }

    private static void run(Trial trial, Check check) {
        long start = System.nanoTime();
        String failure = null;
        CompletableFuture<Void> work = Checks.inBackground(() -> check.body().run(trial));
        try {
            work.get(CHECK_S_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            failure = explain(failed.getCause());
            failed.getCause().printStackTrace();
        } catch (TimeoutException late) {
            failure = "did not end within " + CHECK_S_MAX + " s";
        } catch (InterruptedException interrupted) {
            failure = "interrupted";
        }
        long ms = (System.nanoTime() - start) / 1_000_000;
        Library library = trial.library;
        System.out.printf("{\"library\":%s,\"version\":%s,\"variant\":%s,\"check\":%s,\"ok\":%b,\"detail\":%s}%n", quote(library.name()),
                quote(library.version()), quote(library.variant()), quote(check.name()), failure == null,
                quote(failure == null ? ms + " ms" : failure));
    }

    /** What went wrong, without the words of the assertion class. */
    static String explain(Throwable failure) {
        String cause = failure.getCause() == null || failure instanceof AssertionError ? "" : " / " + failure.getCause();
        return failure instanceof AssertionError ? failure.getMessage() : failure + cause;
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
