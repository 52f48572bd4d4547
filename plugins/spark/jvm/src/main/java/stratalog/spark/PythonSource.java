package stratalog.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The data source in Python, which does all work on logs and tiers.
 *
 * <p>Each call uses a new instance of Spark's wrapper: an instance keeps the plan of its first read for all later reads.
 */
final class PythonSource {
  static final String NAME = "stratalog";

  private PythonSource() {}

  /** Return the source's schema for these options: its columns, or an answer of stratalog_spark/catalog.py. */
  static StructType schema(Map<String, String> options) {
    return provider().inferSchema(new CaseInsensitiveStringMap(options));
  }

  /** Return a scan of these columns. */
  static Scan scan(StructType columns, Map<String, String> options) {
    SupportsRead table = (SupportsRead) table(columns, options);
    return table.newScanBuilder(new CaseInsensitiveStringMap(options)).build();
  }

  /** Return a writer with the options of {@code info}. */
  static WriteBuilder write(LogicalWriteInfo info) {
    return ((SupportsWrite) table(info.schema(), info.options())).newWriteBuilder(info);
  }

  private static Table table(StructType columns, Map<String, String> options) {
    return provider().getTable(columns, new Transform[0], options);
  }

  private static TableProvider provider() {
    Option<TableProvider> found;
    try {
      found = DataSource.lookupDataSourceV2(NAME, SQLConf.get());
    } catch (RuntimeException error) {
      throw missing(error);
    } catch (Exception error) {
      // Scala does not declare its exceptions: a missing data source is a ClassNotFoundException
      throw missing(error);
    }
    if (found.isEmpty()) {
      throw missing(null);
    }
    return found.get();
  }

  private static RuntimeException missing(Exception cause) {
    return new IllegalStateException(
        "Spark's Python does not have the data source " + NAME + ": install the package stratalog[spark] for the Python of the "
            + "driver (PYSPARK_PYTHON or spark.pyspark.python), or call stratalog_spark.register(spark)",
        cause);
  }
}
