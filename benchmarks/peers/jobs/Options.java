import java.util.HashMap;
import java.util.Map;

/** What a job is told: name=value, one a word. */
final class Options {
    private final Map<String, String> given = new HashMap<>();

    Options(String[] words) {
        for (String word : words) {
            int at = word.indexOf('=');
            given.put(word.substring(0, at), word.substring(at + 1));
        }
    }

    String text(String name) {
        if (!given.containsKey(name)) throw new IllegalArgumentException("say " + name + "=...");
        return given.get(name);
    }

    String text(String name, String other) {
        return given.getOrDefault(name, other);
    }

    long number(String name, long other) {
        return Long.parseLong(text(name, Long.toString(other)));
    }

    /** The engine's own settings: set.NAME=VALUE. */
    Map<String, String> settings() {
        Map<String, String> found = new HashMap<>();
        given.forEach((name, value) -> {
            if (name.startsWith("set.")) found.put(name.substring(4), value);
        });
        return found;
    }
}
