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

/** Running count and sum per key in Kafka Streams: its own store with its changelog. set.NAME=VALUE sets a setting. */
public final class StreamsTotals {
    private static final Serde<Long> NUMBER =
        Serdes.serdeFrom((topic, key) -> Rows.text(key), (topic, text) -> text == null ? null : Rows.number(text));

    public static void main(String[] words) {
        Options told = new Options(words);
        Properties settings = new Properties();
        settings.put("application.id", told.text("name"));
        settings.put("bootstrap.servers", told.text("bootstrap"));
        settings.put("state.dir", told.text("folder"));
        settings.put("auto.offset.reset", told.text("from", "earliest"));
        settings.put("replication.factor", "1");
        settings.putAll(told.settings());
        KafkaStreams streams = new KafkaStreams(totals(told).build(settings), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        Meter.start();
        streams.start();
        Thread teller = new Thread(() -> tell(streams), "copies");
        teller.setDaemon(true);
        teller.start();
    }

    /** Says how many partitions' copies are here, and how many records they lack: copies COUNT LAG. */
    private static void tell(KafkaStreams streams) {
        try {
            while (true) {
                long count = 0, lag = 0;
                for (Map<Integer, LagInfo> store : streams.allLocalStorePartitionLags().values()) {
                    count += store.size();
                    for (LagInfo one : store.values()) lag += one.offsetLag();
                }
                System.out.println("copies " + count + " " + lag);
                Thread.sleep(1000);
            }
        } catch (Exception end) {
            System.out.println("copies are not told any more: " + end);
        }
    }

    private static StreamsBuilder totals(Options told) {
        int payload = (int) told.number("payload", 0);
        String out = told.text("out", "");
        StreamsBuilder builder = new StreamsBuilder();
        KStream<Long, byte[]> results = builder.stream(told.text("topic"), Consumed.with(NUMBER, NUMBER))
            .groupByKey(Grouped.with(NUMBER, NUMBER))
            .aggregate(() -> new byte[0], (key, amount, before) -> added(before, key, amount, payload),
                Materialized.<Long, byte[], KeyValueStore<Bytes, byte[]>>as("totals")
                    .withKeySerde(Serdes.Long()).withValueSerde(Serdes.ByteArray()))
            .toStream();
        if (out.isEmpty()) results.foreach((key, totals) -> { });
        else results.mapValues(StreamsTotals::result).to(out, Produced.with(NUMBER, Serdes.ByteArray()));
        return builder;
    }

    private static byte[] added(byte[] before, long key, long amount, int payload) {
        Meter.row();
        ByteBuffer old = ByteBuffer.wrap(before), now = ByteBuffer.allocate(24 + payload);
        long count = 1 + (before.length == 0 ? 0 : old.getLong(0));
        now.putLong(count).putLong(amount + (before.length == 0 ? 0 : old.getLong(8))).putLong(amount);
        Rows.noise(now, key * 31 + count);
        return now.array();
    }

    private static byte[] result(byte[] totals) {
        ByteBuffer found = ByteBuffer.wrap(totals);
        return Rows.result(found.getLong(0), found.getLong(8), found.getLong(16));
    }
}
