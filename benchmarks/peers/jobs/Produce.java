import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes rows to Kafka. rate=0 writes as fast as possible. order=each writes each key in turn. With stamped=true the
 * amount is the time in microseconds. The partition of a key is its remainder, so a reader of results can compute it.
 */
public final class Produce {
    private static final int STEPS_PER_S = 200;

    public static void main(String[] arguments) throws InterruptedException {
        Options options = new Options(arguments);
        long rows = options.number("rows", 0), keys = options.number("keys", 200_000), rate = options.number("rate", 0);
        long partitions = options.number("partitions", 4), step = Math.max(1, rate / STEPS_PER_S);
        boolean inOrder = options.text("order", "drawn").equals("each");
        boolean stamped = Boolean.parseBoolean(options.text("stamped", "false"));
        String topic = options.text("topic");
        long start = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> out = producer(options.text("bootstrap"), rate)) {
            for (long row = 0; row < rows; row++) {
                if (rate > 0 && row % step == 0) sleepUntil(start + row * 1_000_000_000L / rate);
                long key = inOrder ? row % keys : Rows.key(row, keys);
                byte[] amount = Rows.text(stamped ? Rows.micros() : row % 100);
                out.send(new ProducerRecord<>(topic, (int) (key % partitions), Rows.text(key), amount));
            }
        }
        System.out.println("produced " + rows);
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, long rate) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", rate > 0 ? "0" : "50");
        settings.put("batch.size", "131072");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static void sleepUntil(long nanos) throws InterruptedException {
        long wait = nanos - System.nanoTime();
        if (wait > 0) Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
    }
}
