import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayDeque;
import java.util.Comparator;
import java.util.Deque;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own cleaner, without a broker, as a worker of the cleaning benchmark. An input is the folder of a log; a call cleans a copy
 * whose segments are hard links. The cleaner has the broker's default settings: 128 MiB for the map at load factor 0.9, 512 KiB of
 * buffers, no throttling.
 */
public final class CleanerBench extends LineWorker<Path> {
    private static final int MIB = 1 << 20;
    private final Path scratch;
    private final Deque<UnifiedLog> logs = new ArrayDeque<>(), cleaned = new ArrayDeque<>();
    private final ScheduledThreadPoolExecutor idle = new ScheduledThreadPoolExecutor(1, run -> {
        Thread thread = new Thread(run);
        thread.setDaemon(true);
        return thread;
    });
    private final Cleaner cleaner;
    private int made;

    private CleanerBench(Path scratch) throws Exception {
        this.scratch = scratch;
        cleaner = new Cleaner(0, new SkimpyOffsetMap(128 * MIB, "MD5"), 256 << 10, MIB + 12, 0.9,
            new Throttler(Double.MAX_VALUE, 300, "t", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
    }

    public static void main(String[] arguments) throws Exception {
        new CleanerBench(Path.of(arguments[0])).serve();
    }

    /** A scheduler that never runs a task. */
    private final class Never implements Scheduler {
        public void startup() { }
        public void shutdown() { }
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return idle.schedule(() -> { }, 1, TimeUnit.DAYS);
        }
        public void resizeThreadPool(int size) { }
    }

    @Override
    Path load(Path folder) {
        return folder;
    }

    @Override
    void before(String job, Path folder, int calls) throws Exception {
        for (int i = 0; i < calls; i++) {
            Path copy = Files.createDirectories(scratch.resolve("kafka" + made++).resolve(folder.getFileName().toString()));
            try (Stream<Path> files = Files.list(folder)) {
                for (Path file : files.toList()) {
                    Path target = copy.resolve(file.getFileName());
                    if (file.toString().endsWith(".log")) {
                        Files.createLink(target, file);
                    } else {
                        Files.copy(file, target);
                    }
                }
            }
            Properties settings = new Properties();
            settings.put("cleanup.policy", "compact");
            settings.put("segment.bytes", "" + (64 * MIB));
            logs.add(UnifiedLog.create(copy.toFile(), new LogConfig(settings), 0L, 0L, new Never(), new BrokerTopicStats(), Time.SYSTEM,
                300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), true, Optional.empty()));
            logs.getLast().updateHighWatermark(logs.getLast().logEndOffset());
        }
    }

    @Override
    long call(String job, Path folder) throws Exception {
        UnifiedLog log = logs.remove();
        cleaned.add(log);
        long dirtyStart = dirtyStart(folder.resolveSibling("cleaner-offset-checkpoint"));
        return cleaner.clean(new LogToClean(log, dirtyStart, log.activeSegment().baseOffset(), false)).getKey();
    }

    /** Returns the first dirty offset of the only log in the checkpoint; 0 if there is none. */
    private static long dirtyStart(Path checkpoint) throws Exception {
        if (!Files.exists(checkpoint)) {
            return 0;
        }
        var lines = Files.readAllLines(checkpoint);
        return lines.size() < 3 ? 0 : Long.parseLong(lines.get(2).split(" ")[2]);
    }

    @Override
    void after(String job, Path folder) throws Exception {
        for (UnifiedLog log; (log = cleaned.poll()) != null; ) {
            Path root = log.dir().toPath().getParent();
            log.close();
            try (Stream<Path> files = Files.walk(root)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }

    @Override
    byte[] outcome(String job, Path folder) throws Exception {
        before(job, folder, 1);
        long end = call(job, folder);
        byte[] told = (end + " " + digest(cleaned.peek().dir().toPath())).getBytes(StandardCharsets.UTF_8);
        after(job, folder);
        return told;
    }

    /** Returns the SHA-256 of all segment files, concatenated in the order of their names. */
    private static String digest(Path folder) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (Stream<Path> files = Files.list(folder)) {
            for (Path file : files.filter(found -> found.toString().endsWith(".log")).sorted().toList()) {
                digest.update(Files.readAllBytes(file));
            }
        }
        return HexFormat.of().formatHex(digest.digest());
    }
}
