import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Utils;

/** The records of a batch before a producer encodes them, and the buffer for the encoded batch. */
final class Batch {
    final byte[] encoded;
    private final Compression compression;
    private final long[] timestamps;
    private final byte[][] keys, values;
    private final Header[][] headers;
    private final ByteBuffer buffer;

    private Batch(MutableRecordBatch batch) {
        compression = Compression.of(batch.compressionType()).build();
        int count = batch.countOrNull(), size = 256, at = 0;
        ByteBuffer whole = ByteBuffer.allocate(batch.sizeInBytes());
        batch.writeTo(whole);
        encoded = whole.array();
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

    /** Returns all batches in these bytes. */
    static List<Batch> all(byte[] data) {
        List<Batch> batches = new ArrayList<>();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batches.add(new Batch(batch));
        }
        return batches;
    }

    /** Returns the number of records. */
    int count() {
        return timestamps.length;
    }

    /** Encodes the batch. The result is valid until the next call. */
    MemoryRecords build() {
        buffer.clear();
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            buffer, RecordBatch.MAGIC_VALUE_V2, compression, TimestampType.CREATE_TIME, 0L);
        for (int i = 0; i < timestamps.length; i++) {
            builder.append(timestamps[i], wrapped(keys[i]), wrapped(values[i]), headers[i]);
        }
        return builder.build();
    }

    private static ByteBuffer wrapped(byte[] bytes) {
        return bytes == null ? null : ByteBuffer.wrap(bytes);
    }

    /** Appends a line for the record in its canonical form; {@code first} is subtracted from its offset. */
    static void describe(Record record, long first, StringBuilder text) {
        text.append(record.offset() - first).append(' ').append(record.timestamp()).append(' ');
        text.append(hex(Utils.toNullableArray(record.key()))).append(' ').append(hex(Utils.toNullableArray(record.value()))).append(' ');
        String between = "";
        for (Header header : record.headers()) {
            text.append(between).append(hex(Utils.utf8(header.key()))).append('=').append(hex(header.value()));
            between = ",";
        }
        text.append('\n');
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }
}
