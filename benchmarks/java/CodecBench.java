import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Utils;

/**
 * Kafka's own record classes as a worker of the codec benchmark: it answers each line with one line, as harness/workers.py says.
 *
 * Jobs: scan; copy and slice (iterate, CRC checked, every field read, keys and values copied into arrays as a consumer does, or looked
 * at where they are); copy-unchecked and slice-unchecked (without the CRC); encode.
 */
public final class CodecBench {
    private static final BufferSupplier BUFFERS = BufferSupplier.create();
    private static long sink;

    private CodecBench() { }

    public static void main(String[] arguments) throws Exception {
        Map<String, Input> inputs = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String answer;
            try {
                answer = answer(line.trim().split(" "), inputs);
            } catch (Exception | Error problem) {
                answer = "error " + problem.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
    }

    private static String answer(String[] words, Map<String, Input> inputs) throws Exception {
        switch (words[0]) {
            case "load":
                inputs.put(words[1], new Input(Files.readAllBytes(Path.of(words[2]))));
                return "ok";
            case "sample":
                return sample(words[1], inputs.get(words[2]), Integer.parseInt(words[3]));
            case "outcome":
                Files.write(Path.of(words[3]), outcome(words[1], inputs.get(words[2])));
                return "ok";
            default:
                throw new IllegalArgumentException("not understood: " + words[0]);
        }
    }

    private static String sample(String job, Input input, int calls) {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long cpu = system.getProcessCpuTime(), wall = System.nanoTime();
        for (int i = 0; i < calls; i++) {
            sink += call(job, input);
        }
        wall = System.nanoTime() - wall;
        cpu = system.getProcessCpuTime() - cpu;
        return wall + " " + cpu;
    }

    private static long call(String job, Input input) {
        switch (job) {
            case "scan": return scan(input.data);
            case "copy": return copy(input.data, true);
            case "copy-unchecked": return copy(input.data, false);
            case "slice": return slice(input.data, true);
            case "slice-unchecked": return slice(input.data, false);
            case "encode": return encode(input);
            default: throw new IllegalArgumentException("no job " + job);
        }
    }

    private static long scan(byte[] data) {
        long seen = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            seen += batch.baseOffset() + batch.lastOffset();
        }
        return seen;
    }

    private static long copy(byte[] data, boolean checked) {
        long seen = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            if (checked) {
                batch.ensureValid();
            }
            try (CloseableIterator<Record> records = batch.streamingIterator(BUFFERS)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    byte[] key = Utils.toNullableArray(record.key()), value = Utils.toNullableArray(record.value());
                    seen += record.offset() + record.timestamp() + record.headers().length;
                    seen += (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
                }
            }
        }
        return seen;
    }

    private static long slice(byte[] data, boolean checked) {
        long seen = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            if (checked) {
                batch.ensureValid();
            }
            try (CloseableIterator<Record> records = batch.streamingIterator(BUFFERS)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    ByteBuffer key = record.key(), value = record.value();
                    seen += record.offset() + record.timestamp() + record.headers().length;
                    seen += (key == null ? 0 : key.remaining()) + (value == null ? 0 : value.remaining());
                }
            }
        }
        return seen;
    }

    private static long encode(Input input) {
        long seen = 0;
        for (Batch batch : input.batches()) {
            seen += built(batch).limit();
        }
        return seen;
    }

    private static ByteBuffer built(Batch batch) {
        batch.buffer.clear();
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            batch.buffer, RecordBatch.MAGIC_VALUE_V2, batch.compression, TimestampType.CREATE_TIME, 0L);
        for (int i = 0; i < batch.timestamps.length; i++) {
            ByteBuffer key = wrapped(batch.keys[i]), value = wrapped(batch.values[i]);
            builder.append(batch.timestamps[i], key, value, batch.headers[i]);
        }
        return builder.build().buffer();
    }

    private static ByteBuffer wrapped(byte[] bytes) {
        return bytes == null ? null : ByteBuffer.wrap(bytes);
    }

    // ------------------------------------------------------------------ what came out, never measured

    private static byte[] outcome(String job, Input input) {
        sink += call(job, input);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        if (job.equals("encode")) {
            for (Batch batch : input.batches()) {
                byte[] bytes = Utils.toArray(built(batch));
                out.write(bytes, 0, bytes.length);
            }
            return out.toByteArray();
        }
        StringBuilder text = new StringBuilder();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(input.data)).batches()) {
            batch.ensureValid();
            if (job.equals("scan")) {
                text.append(batch.baseOffset()).append(' ').append(batch.lastOffset()).append('\n');
                continue;
            }
            try (CloseableIterator<Record> records = batch.streamingIterator(BUFFERS)) {
                while (records.hasNext()) {
                    describe(records.next(), text);
                }
            }
        }
        return text.toString().getBytes(StandardCharsets.US_ASCII);
    }

    private static void describe(Record record, StringBuilder text) {
        text.append(record.offset()).append(' ').append(record.timestamp()).append(' ');
        text.append(hex(Utils.toNullableArray(record.key()))).append(' ').append(hex(Utils.toNullableArray(record.value()))).append(' ');
        String between = "";
        for (Header header : record.headers()) {
            text.append(between).append(hex(header.key().getBytes(StandardCharsets.UTF_8))).append('=').append(hex(header.value()));
            between = ",";
        }
        text.append('\n');
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    // ------------------------------------------------------------------ inputs

    /** The batches of a file, and their records for encoding, taken out when they are first asked for. */
    private static final class Input {
        final byte[] data;
        private List<Batch> batches;

        Input(byte[] data) {
            this.data = data;
        }

        List<Batch> batches() {
            if (batches == null) {
                batches = new ArrayList<>();
                for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
                    batches.add(new Batch(batch));
                }
            }
            return batches;
        }
    }

    /** What a producer holds of a batch before it is built, and the buffer that it is built into. */
    private static final class Batch {
        final Compression compression;
        final long[] timestamps;
        final byte[][] keys, values;
        final Header[][] headers;
        final ByteBuffer buffer;

        Batch(MutableRecordBatch batch) {
            CompressionType type = batch.compressionType();
            compression = Compression.of(type).build();
            int count = batch.countOrNull(), size = 256, at = 0;
            timestamps = new long[count];
            keys = new byte[count][];
            values = new byte[count][];
            headers = new Header[count][];
            for (Record record : batch) {
                timestamps[at] = record.timestamp();
                keys[at] = Utils.toNullableArray(record.key());
                values[at] = Utils.toNullableArray(record.value());
                headers[at++] = record.headers();
                size += record.sizeInBytes() + 8;
            }
            buffer = ByteBuffer.allocate(size);
        }
    }
}
