import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.LagInfo;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Computes a running count and sum per key with Kafka Streams, in its own store with a changelog.
 * set.NAME=VALUE changes a setting of Kafka Streams.
 */
public final class StreamsTotals {
    private static final Serde<Long> NUMBER =
        Serdes.serdeFrom((topic, key) -> Rows.text(key), (topic, text) -> text == null ? null : Rows.number(text));

    public static void main(String[] arguments) {
        Options options = new Options(arguments);
        Properties settings = new Properties();
        settings.put("application.id", options.text("name"));
        settings.put("bootstrap.servers", options.text("bootstrap"));
        settings.put("state.dir", options.text("folder"));
        settings.put("auto.offset.reset", options.text("from", "earliest"));
        settings.put("replication.factor", "1");
        settings.putAll(options.settings());
        KafkaStreams streams = new KafkaStreams(totals(options).build(settings), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        Meter.start();
        streams.start();
        Thread printer = new Thread(() -> printLags(streams), "copies");
        printer.setDaemon(true);
        printer.start();
    }

    /** Prints how many copies of partitions this process has, and how many records they lack: copies COUNT LAG. */
    private static void printLags(KafkaStreams streams) {
        try {
            while (true) {
                long count = 0, lag = 0;
                for (Map<Integer, LagInfo> store : streams.allLocalStorePartitionLags().values()) {
                    count += store.size();
                    for (LagInfo partition : store.values()) lag += partition.offsetLag();
                }
                System.out.println("copies " + count + " " + lag);
                Thread.sleep(1000);
            }
        } catch (Exception end) {
            System.out.println("copies are no longer printed: " + end);
        }
    }

    private static StreamsBuilder totals(Options options) {
        int payload = (int) options.number("payload", 0);
        String out = options.text("out", "");
        StreamsBuilder builder = new StreamsBuilder();
        KStream<Long, byte[]> results = builder.stream(options.text("topic"), Consumed.with(NUMBER, NUMBER))
            .groupByKey(Grouped.with(NUMBER, NUMBER))
            .aggregate(() -> new byte[0], (key, amount, before) -> add(before, key, amount, payload),
                Materialized.<Long, byte[], KeyValueStore<Bytes, byte[]>>as("totals")
                    .withKeySerde(Serdes.Long()).withValueSerde(Serdes.ByteArray()))
            .toStream();
        if (out.isEmpty()) results.foreach((key, totals) -> { });
        else results.mapValues(StreamsTotals::result).to(out, Produced.with(NUMBER, Serdes.ByteArray()));
        return builder;
    }

    private static byte[] add(byte[] before, long key, long amount, int payload) {
        Meter.row();
        ByteBuffer old = ByteBuffer.wrap(before), updated = ByteBuffer.allocate(24 + payload);
        long count = 1 + (before.length == 0 ? 0 : old.getLong(0));
        updated.putLong(count).putLong(amount + (before.length == 0 ? 0 : old.getLong(8))).putLong(amount);
        Rows.noise(updated, key * 31 + count);
        return updated.array();
    }

    private static byte[] result(byte[] totals) {
        ByteBuffer buffer = ByteBuffer.wrap(totals);
        return Rows.result(buffer.getLong(0), buffer.getLong(8), buffer.getLong(16));
    }
}
