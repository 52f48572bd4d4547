import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Utils;

/**
 * Kafka's own record classes as a worker of the codec benchmark.
 *
 * Jobs: scan; copy and slice (check the CRC, iterate, and read every field: copy copies keys and values into arrays, as a consumer
 * does, slice reads them in the buffer); copy-unchecked and slice-unchecked (without the check of the CRC); encode.
 */
public final class CodecBench extends LineWorker<CodecBench.Input> {
    private static final BufferSupplier BUFFERS = BufferSupplier.create();

    private CodecBench() { }

    public static void main(String[] arguments) throws Exception {
        new CodecBench().serve();
    }

    @Override
    Input load(Path path) throws Exception {
        return new Input(Files.readAllBytes(path));
    }

    @Override
    long call(String job, Input input) {
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
            seen += batch.build().sizeInBytes();
        }
        return seen;
    }

    @Override
    byte[] outcome(String job, Input input) {
        sink += call(job, input);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        if (job.equals("encode")) {
            for (Batch batch : input.batches()) {
                byte[] bytes = Utils.toArray(batch.build().buffer());
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
                    Batch.describe(records.next(), 0, text);
                }
            }
        }
        return text.toString().getBytes(StandardCharsets.US_ASCII);
    }

    /** The bytes of a file, and its batches for encoding, which are decoded on first use. */
    static final class Input {
        final byte[] data;
        private List<Batch> batches;

        Input(byte[] data) {
            this.data = data;
        }

        List<Batch> batches() {
            if (batches == null) {
                batches = Batch.all(data);
            }
            return batches;
        }
    }
}
