package interop;

import java.time.Duration;

/** One client of a lock library, with connections of its own and one ttl for all its locks. */
interface Locker extends AutoCloseable {
    /** Asks once; null where another holds the lock. */
    Held tryLock(String name) throws Exception;

    /** Asks until it gets the lock; null where the time ran out. */
    Held waitFor(String name, Duration limit) throws Exception;

    /** Tries to release what this client does not hold. Only for libraries that renew by themselves. */
    default void releaseAsStranger(String name) throws Exception {
        throw new UnsupportedOperationException();
    }

    @Override
    void close();

    /** One lock in the hand of one owner. */
    interface Held {
        /** Gives the lock its ttl anew. */
        void extend() throws Exception;

        void release() throws Exception;
    }

    /** The lock is no longer, or never was, the caller's. */
    final class NotHeld extends Exception {
        NotHeld() {
            super("not held");
        }
    }

    /** Polls, for libraries without a way to wait. */
    static Held poll(Locker locker, String name, Duration limit) throws Exception {
        long deadline = System.nanoTime() + limit.toNanos();
        while (true) {
            Held held = locker.tryLock(name);
            if (held != null || System.nanoTime() > deadline) {
                return held;
            }
            Thread.sleep(30);
        }
    }
}
