import java.util.HashMap;
import java.util.Map;

/** The options of a job: one name=value per argument. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            values.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
    }

    String text(String name) {
        if (!values.containsKey(name)) throw new IllegalArgumentException("Missing option: " + name + "=...");
        return values.get(name);
    }

    String text(String name, String defaultText) {
        return values.getOrDefault(name, defaultText);
    }

    long number(String name, long defaultNumber) {
        return Long.parseLong(text(name, Long.toString(defaultNumber)));
    }

    /** The engine's own settings: set.NAME=VALUE. */
    Map<String, String> settings() {
        Map<String, String> settings = new HashMap<>();
        values.forEach((name, value) -> {
            if (name.startsWith("set.")) settings.put(name.substring(4), value);
        });
        return settings;
    }
}
