import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** Offsets ADDRESS START_MS: what a broker answers to ListOffsets, as one JSON object. */
public class Offsets {
    private static final long[] AFTER_START_MS = {
        0, 1, 20_000, 33_500, 59_999, 60_000, 100_000, 149_000, 200_000, 260_000, 300_000, 379_000, 420_000, 439_000,
        500_000, 10_000_000
    };

    public static void main(String[] arguments) throws Exception {
        long startMs = Long.parseLong(arguments[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            Map<String, String> logs = new TreeMap<>();
            for (String topic : new TreeSet<>(admin.listTopics().names().get())) {
                if (topic.startsWith("__")) continue;
                int partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
                for (int partition = 0; partition < partitions; partition++) {
                    TopicPartition log = new TopicPartition(topic, partition);
                    Map<String, String> levels = new TreeMap<>();
                    for (IsolationLevel level : IsolationLevel.values())
                        levels.put(level.toString().toLowerCase(), answers(admin, log, new ListOffsetsOptions(level), startMs));
                    logs.put(log.toString(), object(levels));
                }
            }
            System.out.println(object(logs));
        }
    }

    private static String answers(Admin admin, TopicPartition log, ListOffsetsOptions options, long startMs) throws Exception {
        Map<String, String> found = new TreeMap<>();
        found.put("earliest", ask(admin, log, OffsetSpec.earliest(), options));
        found.put("earliest-local", ask(admin, log, new OffsetSpec.EarliestLocalSpec(), options));
        found.put("latest", ask(admin, log, OffsetSpec.latest(), options));
        found.put("latest-tiered", ask(admin, log, new OffsetSpec.LatestTieredSpec(), options));
        found.put("max-timestamp", ask(admin, log, OffsetSpec.maxTimestamp(), options));
        StringBuilder asked = new StringBuilder(query(admin, log, 0, options));
        for (long after : AFTER_START_MS) asked.append(",\n").append(query(admin, log, startMs + after, options));
        found.put("by-timestamp", "[" + asked + "]");
        return object(found);
    }

    private static String query(Admin admin, TopicPartition log, long ms, ListOffsetsOptions options) throws Exception {
        return "{\"query\": " + ms + ", \"answer\": " + ask(admin, log, OffsetSpec.forTimestamp(ms), options) + "}";
    }

    private static String ask(Admin admin, TopicPartition log, OffsetSpec spec, ListOffsetsOptions options) throws Exception {
        try {
            var found = admin.listOffsets(Map.of(log, spec), options).partitionResult(log).get();
            String epoch = found.leaderEpoch().map(String::valueOf).orElse("null");
            return "{\"offset\": " + found.offset() + ", \"timestamp\": " + found.timestamp() + ", \"leader_epoch\": " + epoch + "}";
        } catch (ExecutionException error) {
            return "{\"error\": \"" + error.getCause().getClass().getSimpleName() + "\"}";
        }
    }

    private static String object(Map<String, String> members) {
        StringBuilder text = new StringBuilder();
        members.forEach((name, value) -> text.append(text.isEmpty() ? "" : ",\n").append("\"" + name + "\": " + value));
        return "{" + text + "}";
    }
}
