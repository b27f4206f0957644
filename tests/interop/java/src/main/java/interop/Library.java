package interop;

import java.io.InputStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.function.Function;

/**
 * One row of the table.
 *
 * @param artifact group/artifact whose version is reported
 * @param opener connects a new client; null for a library without locks of the common kind
 * @param keys the Redis keys that hold the lock of a name
 * @param renews whether the library renews its locks by itself, so that only a dead client's lock expires
 * @param masters whether it speaks to the Redlock listeners as to N masters
 * @param own the checks of what this library alone offers
 */
record Library(String id, String name, String variant, String artifact, Opener opener,
        Function<String, List<String>> keys, boolean renews, boolean masters, List<Check> own) {

    /** Connects a client to these addresses: one, or as many as there are masters. */
    interface Opener {
        Locker open(List<String> addresses, Duration ttl) throws Exception;
    }

    interface Body {
        void run(Trial trial) throws Exception;
    }

    record Check(String name, Body body) {
    }

    String key(String name) {
        return keys.apply(name).get(0);
    }

    /** The version in the jar that was loaded. */
    String version() {
        try (InputStream in = Library.class.getResourceAsStream("/META-INF/maven/" + artifact + "/pom.properties")) {
            Properties properties = new Properties();
            properties.load(in);
            return properties.getProperty("version");
        } catch (Exception absent) {
            return "?";
        }
    }
}
