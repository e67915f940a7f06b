import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads committed results from now on, and prints each: result ARRIVED PARTITION LAST. Times are in microseconds. */
public final class Watch {
    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        long partitions = options.number("partitions", 4);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.text("bootstrap"));
        settings.put("isolation.level", "read_committed");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> in = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> all = in.partitionsFor(options.text("topic")).stream()
                .map(info -> new TopicPartition(info.topic(), info.partition())).toList();
            in.assign(all);
            in.seekToEnd(all);
            all.forEach(in::position);
            System.out.println("watching");
            while (true) printResults(in.poll(Duration.ofMillis(100)), partitions);
        }
    }

    private static void printResults(Iterable<ConsumerRecord<byte[], byte[]>> results, long partitions) {
        long now = Rows.micros();
        StringBuilder lines = new StringBuilder();
        for (ConsumerRecord<byte[], byte[]> result : results) {
            String value = new String(result.value());
            lines.append("result ").append(now).append(' ').append(Rows.number(result.key()) % partitions).append(' ')
                .append(value, value.lastIndexOf(' ') + 1, value.length()).append('\n');
        }
        System.out.print(lines);
        System.out.flush();
    }
}
