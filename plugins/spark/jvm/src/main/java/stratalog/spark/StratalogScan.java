package stratalog.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;

/** A read with the columns, predicates and counts that a query pushed down. The source in Python plans it once. */
final class StratalogScan implements SupportsReportStatistics {
  private final String name;
  private final StructType columns;
  private final Map<String, String> options;
  private final Scan scan;
  private Metadata plan;
  private RuntimeException failure;
  private boolean streams;

  StratalogScan(String name, StructType columns, Map<String, String> options) {
    this.name = name;
    this.columns = columns;
    this.options = options;
    this.scan = PythonSource.scan(columns, options);
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  /** Return topics, path, columns, pushed predicates, ranges, and the parts of segments that are read. */
  @Override
  public String description() {
    if (streams) {
      return name;
    }
    try {
      return name + " " + plan().getString("description");
    } catch (RuntimeException error) { // toBatch raises it
      return name + " [no plan: " + error.getMessage().lines().reduce("", (first, last) -> last.isBlank() ? first : last) + "]";
    }
  }

  @Override
  public Statistics estimateStatistics() {
    long sizeBytes = plan().getLong("size_bytes");
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(sizeBytes);
      }

      @Override
      public OptionalLong numRows() {
        return OptionalLong.empty();
      }
    };
  }

  /** Return the plan, or throw the error of the first call. It is made only once: Spark asks for it many times. */
  private synchronized Metadata plan() {
    if (failure != null) {
      throw failure;
    }
    if (plan == null) {
      Map<String, String> question = new HashMap<>(options);
      question.put("ask", "plan");
      question.put("schema", columns.json());
      try {
        plan = PythonSource.schema(question).fields()[0].metadata().getMetadata("stratalog.plan");
      } catch (RuntimeException error) {
        failure = error;
        throw error;
      }
    }
    return plan;
  }

  @Override
  public Batch toBatch() {
    return scan.toBatch();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    streams = true; // each micro-batch has its own plan
    return scan.toMicroBatchStream(checkpointLocation);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return scan.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return scan.reportDriverMetrics();
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return scan.columnarSupportMode();
  }
}
