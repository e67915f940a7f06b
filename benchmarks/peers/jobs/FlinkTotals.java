import java.nio.ByteBuffer;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Computes a running count and sum per key with Flink's DataStream API, in this process or, with port=..., in a
 * cluster. set.NAME=VALUE changes a setting of Flink.
 */
public final class FlinkTotals {
    private static final TypeInformation<Tuple2<Long, Long>> ROW = Types.TUPLE(Types.LONG, Types.LONG);
    private static final TypeInformation<Tuple4<Long, Long, Long, Long>> RESULT =
        Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.LONG);

    /** Adds up the rows of each key, and returns one result per row: key, count, total, and the row's amount. */
    public static final class Totals
        extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple4<Long, Long, Long, Long>> {
        private final int payload;
        private transient ValueState<Tuple2<Long, Long>> totals;
        private transient ValueState<byte[]> noise;

        Totals(int payload) {
            this.payload = payload;
        }

        @Override
        public void open(OpenContext context) {
            totals = getRuntimeContext().getState(new ValueStateDescriptor<>("totals", ROW));
            if (payload > 0) noise = getRuntimeContext().getState(
                new ValueStateDescriptor<>("noise", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
            Meter.start();
        }

        @Override
        public void processElement(Tuple2<Long, Long> row, Context context,
            Collector<Tuple4<Long, Long, Long, Long>> results) throws Exception {
            Meter.row();
            Tuple2<Long, Long> total = totals.value();
            total = total == null ? Tuple2.of(1L, row.f1) : Tuple2.of(total.f0 + 1, total.f1 + row.f1);
            totals.update(total);
            if (payload > 0) {
                ByteBuffer bytes = ByteBuffer.allocate(payload);
                Rows.noise(bytes, row.f0 * 31 + total.f0);
                noise.update(bytes.array());
            }
            results.collect(Tuple4.of(row.f0, total.f0, total.f1, row.f1));
        }
    }

    /** Reads decimal text. */
    public static final class Read implements KafkaRecordDeserializationSchema<Tuple2<Long, Long>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<Long, Long>> rows) {
            rows.collect(Tuple2.of(Rows.number(record.key()), Rows.number(record.value())));
        }

        @Override
        public TypeInformation<Tuple2<Long, Long>> getProducedType() {
            return ROW;
        }
    }

    /** Writes results as text. */
    public static final class Write implements KafkaRecordSerializationSchema<Tuple4<Long, Long, Long, Long>> {
        private final String topic;

        Write(String topic) {
            this.topic = topic;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(Tuple4<Long, Long, Long, Long> result, KafkaSinkContext context,
            Long time) {
            return new ProducerRecord<>(topic, Rows.text(result.f0), Rows.result(result.f1, result.f2, result.f3));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        StreamExecutionEnvironment flink = environment(options);
        SingleOutputStreamOperator<Tuple4<Long, Long, Long, Long>> results = rows(flink, options)
            .keyBy(row -> row.f0, Types.LONG).process(new Totals((int) options.number("payload", 0))).returns(RESULT);
        if (options.text("out", "").isEmpty()) results.sinkTo(new DiscardingSink<>());
        else results.sinkTo(sink(options));
        flink.execute("totals");
    }

    private static StreamExecutionEnvironment environment(Options options) throws Exception {
        Configuration settings = new Configuration();
        options.settings().forEach(settings::setString);
        int port = (int) options.number("port", 0);
        if (port > 0) return StreamExecutionEnvironment.createRemoteEnvironment("127.0.0.1", port, settings);
        FileSystem.initialize(settings, null);
        return StreamExecutionEnvironment.createLocalEnvironment((int) options.number("parallelism", 2), settings);
    }

    private static DataStream<Tuple2<Long, Long>> rows(StreamExecutionEnvironment flink, Options options) {
        String topic = options.text("topic", "");
        long keys = options.number("keys", 200_000);
        if (topic.isEmpty()) {
            GeneratorFunction<Long, Tuple2<Long, Long>> make = row -> Tuple2.of(Rows.key(row, keys), row);
            return flink.fromSource(
                new DataGeneratorSource<>(make, Long.MAX_VALUE, ROW), WatermarkStrategy.noWatermarks(), "rows");
        }
        KafkaSource<Tuple2<Long, Long>> source = KafkaSource.<Tuple2<Long, Long>>builder()
            .setBootstrapServers(options.text("bootstrap")).setTopics(topic).setGroupId("totals")
            .setStartingOffsets(OffsetsInitializer.earliest()).setDeserializer(new Read()).build();
        return flink.fromSource(source, WatermarkStrategy.noWatermarks(), "rows");
    }

    private static KafkaSink<Tuple4<Long, Long, Long, Long>> sink(Options options) {
        return KafkaSink.<Tuple4<Long, Long, Long, Long>>builder().setBootstrapServers(options.text("bootstrap"))
            .setRecordSerializer(new Write(options.text("out"))).setTransactionalIdPrefix("totals")
            .setProperty("transaction.timeout.ms", "600000")
            .setDeliveryGuarantee(DeliveryGuarantee.valueOf(options.text("guarantee", "EXACTLY_ONCE"))).build();
    }
}
