import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleaningAbortedException;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.LogCleanerManager.OffsetsToClean;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Kafka's own cleaner over a log folder, at a time that it is told. Each line on standard input is a round:
 *  FOLDER NOW_MS DIRTY_START MAP_BYTES NAME=VALUE...; the answer is "END BYTES_READ RECORDS_READ RECORDS_KEPT", or "error ...".
 *  With a map of no bytes the folder is opened as after a crash, and nothing more: "END". */
public class KafkaCleaner {
    /** A clock that stands still. */
    static class Fixed implements Time {
        final long now;
        Fixed(long now) { this.now = now; }
        public long milliseconds() { return now; }
        public long nanoseconds() { return System.nanoTime(); }
        public void sleep(long ms) { }
        public void waitObject(Object o, Supplier<Boolean> done, long deadline) { throw new UnsupportedOperationException(); }
    }

    /** Nothing happens later: files that are to be deleted stay as .deleted, as after a crash. */
    static class Never implements Scheduler {
        final ScheduledThreadPoolExecutor idle = new ScheduledThreadPoolExecutor(1, run -> {
            Thread thread = new Thread(run);
            thread.setDaemon(true);
            return thread;
        });
        public void startup() { }
        public void shutdown() { }
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return idle.schedule(() -> { }, 1, TimeUnit.DAYS);
        }
        public void resizeThreadPool(int size) { }
    }

    static String round(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("cleanup.policy", "compact");
        for (int i = 4; i < words.length; i++) settings.put(words[i].split("=")[0], words[i].split("=")[1]);
        Time time = new Fixed(Long.parseLong(words[1]));
        LogConfig config = new LogConfig(settings);
        Never never = new Never();
        boolean cleans = !words[3].equals("0");
        UnifiedLog log = UnifiedLog.create(new File(words[0]), config, 0L, 0L, never, new BrokerTopicStats(), time, 300_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), cleans, Optional.empty());
        try {
            if (!cleans) return Long.toString(log.logEndOffset());
            log.updateHighWatermark(log.logEndOffset());
            long dirty = Long.parseLong(words[2]);
            OffsetsToClean bounds = LogCleanerManager.cleanableOffsets(log, Optional.of(dirty), time.milliseconds());
            LogToClean todo = new LogToClean(log, bounds.firstDirtyOffset(), bounds.firstUncleanableDirtyOffset(), false);
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(Integer.parseInt(words[3]), "MD5"), 256 << 10, 1 << 20, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "t", "bytes", time), time, (TopicPartition tp) -> { });
            Map.Entry<Long, CleanerStats> did = cleaner.clean(todo);
            CleanerStats s = did.getValue();
            return did.getKey() + " " + s.bytesRead() + " " + s.messagesRead() + " " + s.messagesWritten();
        } catch (LogCleaningAbortedException split) {  // an overflowed segment was: the cleaner comes again later
            return null;
        } finally {
            log.close();
            never.idle.shutdownNow();
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                do answer = round(line.trim().split(" ")); while (answer == null);
            } catch (Exception error) {
                error.printStackTrace();
                answer = "error " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
