import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;

/** Converts keys, amounts (decimal text) and results (COUNT TOTAL LAST) from and to text, and generates keys. */
final class Rows {
    private Rows() {}

    static long number(byte[] text) {
        boolean negative = text[0] == '-';
        long number = 0;
        for (int index = negative ? 1 : 0; index < text.length; index++) number = number * 10 + (text[index] - '0');
        return negative ? -number : number;
    }

    static byte[] text(long number) {
        return Long.toString(number).getBytes(StandardCharsets.US_ASCII);
    }

    static byte[] result(long count, long total, long last) {
        return (count + " " + total + " " + last).getBytes(StandardCharsets.US_ASCII);
    }

    /** Returns a pseudo-random key for a number, by the last steps of SplitMix64. */
    static long key(long number, long keys) {
        long mixed = (number + 1) * 0x9E3779B97F4A7C15L;
        mixed = (mixed ^ (mixed >>> 30)) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
        return Long.remainderUnsigned(mixed ^ (mixed >>> 31), keys);
    }

    /** Fills a buffer with incompressible bytes, which differ by the seed. */
    static void noise(ByteBuffer buffer, long seed) {
        long word = seed * 0x9E3779B97F4A7C15L + 1;
        while (buffer.remaining() >= 8) {
            word ^= word << 13;
            word ^= word >>> 7;
            word ^= word << 17;
            buffer.putLong(word);
        }
    }

    static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }
}
