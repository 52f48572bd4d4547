package stratalog.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A topic, or the topics that the options of a read select. Options of a query override those of the table. */
final class StratalogTable implements SupportsRead, SupportsWrite {
  /** Prefix of options of the catalog. The source uses those that suit a read or a write. */
  static final String CATALOG = "catalog.";

  private static final String[] CHOICES = {"subscribe", "subscribePattern", "assign"};

  private final String name;
  private final String topic;
  private final Map<String, String> options;
  private final StructType schema;
  private final Map<String, String> properties;

  /** {@code topic} is null if the options select the topics. */
  StratalogTable(String name, String topic, Map<String, String> options, StructType schema, Map<String, String> properties) {
    this.name = name;
    this.topic = topic;
    this.options = options;
    this.schema = schema;
    this.properties = properties;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  @SuppressWarnings("deprecation") // Spark's default for columns() calls it
  public StructType schema() {
    return schema;
  }

  @Override
  public Map<String, String> properties() {
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.STREAMING_WRITE,
        TableCapability.ACCEPT_ANY_SCHEMA); // the sink checks the columns by name; a row need not have all of them
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> merged = merged(given);
    CaseInsensitiveStringMap found = new CaseInsensitiveStringMap(merged);
    boolean chosen = false;
    for (String choice : CHOICES) {
      chosen |= found.containsKey(choice);
    }
    if (topic != null && !chosen) {
      merged.put("subscribe", topic);
    }
    return new StratalogScanBuilder(name, schema, merged);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Map<String, String> merged = merged(info.options());
    if (topic != null) {
      merged.put("topic", topic);
    }
    CaseInsensitiveStringMap found = new CaseInsensitiveStringMap(merged);
    return PythonSource.write(
        new LogicalWriteInfo() {
          @Override
          public CaseInsensitiveStringMap options() {
            return found;
          }

          @Override
          public String queryId() {
            return info.queryId();
          }

          @Override
          public StructType schema() {
            return info.schema();
          }
        });
  }

  private Map<String, String> merged(CaseInsensitiveStringMap given) {
    Map<String, String> found = new HashMap<>();
    options.forEach((key, value) -> {
      if (!given.containsKey(key)) {
        found.put(key, value);
      }
    });
    found.putAll(given.asCaseSensitiveMap());
    return found;
  }
}
