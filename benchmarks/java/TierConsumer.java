import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads topics from a broker, as a worker of the tier benchmark. An input is a file with "address topic end-offset". */
public final class TierConsumer extends LineWorker<String[]> {
    public static void main(String[] arguments) throws Exception {
        new TierConsumer().serve();
    }

    @Override
    String[] load(Path path) throws Exception {
        return Files.readString(path).trim().split(" ");
    }

    @Override
    long call(String job, String[] input) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", input[0]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        TopicPartition partition = new TopicPartition(input[1], 0);
        long end = Long.parseLong(input[2]), bytes = 0;
        try (var consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (consumer.position(partition) < end) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(10));
                if (records.isEmpty()) {
                    throw new IllegalStateException("no records for 10 s at " + consumer.position(partition));
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    bytes += record.offset() < end ? record.key().length + record.value().length : 0;
                }
            }
        }
        return bytes;
    }

    @Override
    byte[] outcome(String job, String[] input) {
        return Long.toString(call(job, input)).getBytes(StandardCharsets.US_ASCII);
    }
}
