import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;

/** Keys and amounts as Kafka has them, decimal text; results as the text COUNT TOTAL LAST; and where they come from. */
final class Rows {
    private Rows() {}

    static long number(byte[] text) {
        boolean negative = text[0] == '-';
        long found = 0;
        for (int at = negative ? 1 : 0; at < text.length; at++) found = found * 10 + (text[at] - '0');
        return negative ? -found : found;
    }

    static byte[] text(long number) {
        return Long.toString(number).getBytes(StandardCharsets.US_ASCII);
    }

    static byte[] result(long count, long total, long last) {
        return (count + " " + total + " " + last).getBytes(StandardCharsets.US_ASCII);
    }

    /** A key that is as good as drawn at random, from a number: SplitMix64's last steps. */
    static long key(long number, long keys) {
        long mixed = (number + 1) * 0x9E3779B97F4A7C15L;
        mixed = (mixed ^ (mixed >>> 30)) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
        return Long.remainderUnsigned(mixed ^ (mixed >>> 31), keys);
    }

    /** Bytes that nothing can compress, others with each change. */
    static void noise(ByteBuffer into, long seed) {
        long word = seed * 0x9E3779B97F4A7C15L + 1;
        while (into.remaining() >= 8) {
            word ^= word << 13;
            word ^= word >>> 7;
            word ^= word << 17;
            into.putLong(word);
        }
    }

    static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }
}
