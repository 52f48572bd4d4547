import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own storage engine (UnifiedLog), without broker, network or replication, as a worker of the log benchmark.
 *
 * An input is a file with batches, or the folder of a log. Jobs on batches: append (encoded ones) and append-records (which also encodes).
 * Jobs on a log: fetch and iterate (the whole log, in steps of 1 MiB), offsets and timestamps (look-ups), recover and recover-indexed
 * (opening a copy after an unclean shutdown, without or with its indexes). Nothing is flushed to disk: the scheduler drops these tasks.
 */
public final class LogBench extends LineWorker<LogBench.Input> {
    private static final int MIB = 1 << 20, SEGMENT_BYTES = 1 << 30;
    private static final int LOOK_UPS = 1000;
    private static final BufferSupplier BUFFERS = BufferSupplier.create();
    private static final RequestLocal LOCAL = RequestLocal.withThreadConfinedCaching();
    private static final BrokerTopicStats STATS = new BrokerTopicStats();
    private final Tasks tasks = new Tasks();
    private final Deque<Path> copies = new ArrayDeque<>();
    private final Path scratch;
    private UnifiedLog target;
    private int made;

    private LogBench(Path scratch) {
        this.scratch = scratch;
    }

    public static void main(String[] arguments) throws Exception {
        new LogBench(Path.of(arguments[0])).serve();
    }

    @Override
    Input load(Path path) throws Exception {
        return Files.isDirectory(path) ? new Input(List.of(), path, open(path, true)) : new Input(Batch.all(Files.readAllBytes(path)), null, null);
    }

    @Override
    void before(String job, Input input, int calls) throws Exception {
        if (job.startsWith("append")) {
            target = open(fresh(), true);
            long bytes = 0;
            for (Batch batch : input.batches) {
                bytes += batch.encoded.length;
            }
            call(job, input);                             // the first call is not measured
            warmPages(bytes * calls);
        } else if (job.startsWith("recover")) {
            for (int i = 0; i < calls; i++) {
                copies.add(copy(input.folder, job.equals("recover-indexed")));
            }
        }
        System.gc();
    }

    @Override
    void after(String job, Input input) throws Exception {
        if (job.startsWith("append")) {
            drop(target);
        }
        for (UnifiedLog log : input.opened) {
            drop(log);
        }
        input.opened.clear();
    }

    @Override
    long call(String job, Input input) throws Exception {
        switch (job) {
            case "append":
                for (Batch batch : input.batches) {
                    append(MemoryRecords.readableRecords(ByteBuffer.wrap(batch.encoded)));
                }
                return target.logEndOffset();
            case "append-records":
                for (Batch batch : input.batches) {
                    append(batch.build());
                }
                return target.logEndOffset();
            case "fetch": return fetch(input.log, (offset, data) -> data.get(data.limit() - 1));
            case "iterate": return fetch(input.log, LogBench::iterate);
            case "offsets": return offsets(input, null);
            case "timestamps": return timestamps(input, null);
            case "recover":
            case "recover-indexed":
                UnifiedLog log = open(copies.remove(), false);
                input.opened.add(log);
                return log.logEndOffset();
            default: throw new IllegalArgumentException("no job " + job);
        }
    }

    private void append(MemoryRecords records) {
        records.buffer().putLong(0, 0L);                  // reset the base offset of the last append
        target.appendAsLeader(records, 0, AppendOrigin.CLIENT, LOCAL, VerificationGuard.SENTINEL);
    }

    // ------------------------------------------------------------------ reading

    /** Processes the bytes of one fetch, and returns a sum of them. */
    private interface Reader {
        long read(long offset, ByteBuffer data) throws Exception;
    }

    private static long fetch(UnifiedLog log, Reader reader) throws Exception {
        long seen = 0;
        ByteBuffer buffer = ByteBuffer.allocate(MIB);
        for (long offset = log.logStartOffset(); offset < log.logEndOffset(); ) {
            FileRecords found = (FileRecords) log.read(offset, MIB, FetchIsolation.HIGH_WATERMARK, true).records;
            buffer.clear().limit(found.sizeInBytes());
            found.readInto(buffer, 0);
            long first = offset;
            int whole = 0;
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) {
                offset = batch.nextOffset();
                whole += batch.sizeInBytes();
            }
            seen += reader.read(first, buffer.duplicate().limit(whole));
        }
        return seen;
    }

    /** Copies all keys and values into arrays, as a consumer with ByteArrayDeserializer does. */
    private static long iterate(long offset, ByteBuffer data) {
        long seen = 0;
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(data).batches()) {
            batch.ensureValid();
            try (CloseableIterator<Record> records = batch.streamingIterator(BUFFERS)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    byte[] key = Utils.toNullableArray(record.key()), value = Utils.toNullableArray(record.value());
                    seen += record.offset() + record.timestamp() + record.headers().length + key.length + value.length;
                }
            }
        }
        return seen;
    }

    // ------------------------------------------------------------------ look-ups

    /** Returns the same offsets in each call as random_offsets in log_parts/logs.py: a linear congruential generator. */
    private static long[] wanted(long records) {
        long[] offsets = new long[LOOK_UPS];
        long state = 7;
        for (int i = 0; i < LOOK_UPS; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            offsets[i] = (state >>> 33) % records;
        }
        return offsets;
    }

    /** Reads the batch of each wanted offset into memory, as a fetch of stratalog does, and takes the base offset from it. */
    private static long offsets(Input input, StringBuilder told) throws Exception {
        long seen = 0;
        ByteBuffer buffer = ByteBuffer.allocate(MIB);
        for (long offset : wanted(input.log.logEndOffset())) {
            FileRecords found = (FileRecords) input.log.read(offset, 1, FetchIsolation.HIGH_WATERMARK, true).records;
            buffer.clear().limit(found.sizeInBytes());
            found.readInto(buffer, 0);
            long first = buffer.getLong(0);
            seen += first;
            if (told != null) {
                told.append(first).append('\n');
            }
        }
        return seen;
    }

    private static long timestamps(Input input, StringBuilder told) throws Exception {
        long seen = 0;
        for (long offset : wanted(input.log.logEndOffset())) {
            long found = input.log.fetchOffsetByTimestamp(input.firstMs + offset, Optional.empty()).timestampAndOffsetOpt().get().offset;
            seen += found;
            if (told != null) {
                told.append(found).append('\n');
            }
        }
        return seen;
    }

    // ------------------------------------------------------------------ outcomes, which are never measured

    @Override
    byte[] outcome(String job, Input input) throws Exception {
        StringBuilder text = new StringBuilder();
        switch (job) {
            case "append":
            case "append-records":
                target = open(fresh(), true);
                call(job, input);
                target.updateHighWatermark(target.logEndOffset());
                fetch(target, (offset, data) -> {
                    for (MutableRecordBatch batch : MemoryRecords.readableRecords(data).batches()) {
                        batch.ensureValid();
                        batch.forEach(record -> Batch.describe(record, 0, text));
                    }
                    return 0;
                });
                break;
            case "fetch":
            case "iterate":
                MessageDigest digest = MessageDigest.getInstance("SHA-256");
                fetch(input.log, (offset, data) -> {
                    digest.update(data);
                    return 0;
                });
                text.append(HexFormat.of().formatHex(digest.digest())).append('\n');
                if (job.equals("iterate")) {
                    text.append(call(job, input)).append('\n');
                }
                break;
            case "offsets": offsets(input, text); break;
            case "timestamps": timestamps(input, text); break;
            default:
                before(job, input, 1);
                text.append(call(job, input)).append('\n');
        }
        after(job, input);
        return text.toString().getBytes(StandardCharsets.US_ASCII);
    }

    // ------------------------------------------------------------------ logs and files

    private UnifiedLog open(Path folder, boolean clean) throws IOException {
        Properties properties = new Properties();
        properties.put("segment.bytes", "" + SEGMENT_BYTES);
        properties.put("retention.ms", "-1");
        UnifiedLog log = UnifiedLog.create(folder.toFile(), new LogConfig(properties), 0L, 0L, tasks, STATS, Time.SYSTEM, 300_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), clean, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return log;
    }

    private Path fresh() throws IOException {
        return Files.createDirectories(scratch.resolve("log" + made++).resolve("t-0"));
    }

    /** Copies a log to a new folder: segments as hard links, indexes only if {@code indexes}, and no other files. */
    private Path copy(Path folder, boolean indexes) throws IOException {
        Path copy = fresh();
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.toList()) {
                String name = file.getFileName().toString();
                if (name.endsWith(".log")) {
                    Files.createLink(copy.resolve(name), file);
                } else if (indexes && name.endsWith("index")) {
                    Files.copy(file, copy.resolve(name));
                }
            }
        }
        return copy;
    }

    private void drop(UnifiedLog log) throws IOException {
        log.close();
        tasks.deletions.forEach(Runnable::run);
        tasks.deletions.clear();
        try (Stream<Path> files = Files.walk(log.dir().toPath().getParent())) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** Writes and deletes a file, so that a virtual machine has memory for the pages of the next files. */
    private void warmPages(long bytes) throws IOException {
        Path file = scratch.resolve("pages");
        ByteBuffer zeros = ByteBuffer.allocateDirect(MIB);
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            for (long written = 0; written < bytes + bytes / 4; written += MIB) {
                channel.write(zeros.duplicate());
            }
        }
        Files.delete(file);
    }

    /** Batches in memory, or a log and its folder. */
    static final class Input {
        final List<Batch> batches;
        final Path folder;
        final UnifiedLog log;
        final long firstMs;
        final List<UnifiedLog> opened = new ArrayList<>();

        Input(List<Batch> batches, Path folder, UnifiedLog log) throws IOException {
            this.batches = batches;
            this.folder = folder;
            this.log = log;
            firstMs = log == null ? 0 : firstMs(log);
        }

        private static long firstMs(UnifiedLog log) throws IOException {
            FileRecords records = (FileRecords) log.read(log.logStartOffset(), 1, FetchIsolation.HIGH_WATERMARK, true).records;
            return records.batches().iterator().next().iterator().next().timestamp();
        }
    }

    /** A scheduler that drops flushes, and keeps deletions until the measured time has ended. */
    private static final class Tasks implements Scheduler {
        final List<Runnable> deletions = new ArrayList<>();

        @Override
        public void startup() { }

        @Override
        public void shutdown() { }

        @Override
        public void resizeThreadPool(int size) { }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (name.startsWith("delete")) {
                deletions.add(task);
            }
            return new Done();
        }
    }

    private static final class Done extends FutureTask<Void> implements ScheduledFuture<Void> {
        Done() {
            super(() -> null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }
}
