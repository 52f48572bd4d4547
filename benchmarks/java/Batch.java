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

/** What a producer holds of a batch before it is built, and the buffer that it is built into. */
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

    /** All batches in these bytes. */
    static List<Batch> all(byte[] data) {
        List<Batch> batches = new ArrayList<>();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batches.add(new Batch(batch));
        }
        return batches;
    }

    /** How many records there are. */
    int count() {
        return timestamps.length;
    }

    /** Builds it. What is returned is good until the next call. */
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

    /** One line a record, in the form that compares; {@code first} is the offset that is told as 0. */
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
