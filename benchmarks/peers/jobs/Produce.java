import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Puts rows: rate=0 as fast as it goes; order=each names every key once. stamped=true has the time as the amount, in
 * microseconds. A key's partition is its remainder, so that who reads its results knows it.
 */
public final class Produce {
    private static final int STEPS_PER_S = 200;

    public static void main(String[] words) throws InterruptedException {
        Options told = new Options(words);
        long rows = told.number("rows", 0), keys = told.number("keys", 200_000), rate = told.number("rate", 0);
        long partitions = told.number("partitions", 4), step = Math.max(1, rate / STEPS_PER_S);
        boolean each = told.text("order", "drawn").equals("each");
        boolean stamped = Boolean.parseBoolean(told.text("stamped", "false"));
        String topic = told.text("topic");
        long began = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> out = producer(told.text("bootstrap"), rate)) {
            for (long row = 0; row < rows; row++) {
                if (rate > 0 && row % step == 0) sleepUntil(began + row * 1_000_000_000L / rate);
                long key = each ? row % keys : Rows.key(row, keys);
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
