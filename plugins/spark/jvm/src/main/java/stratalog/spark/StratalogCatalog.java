package stratalog.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Catalog whose tables are the topics of a directory or a tier.
 *
 * <p>{@code spark.sql.catalog.NAME.path} is the directory or tier of tables without a namespace. The other options of the
 * catalog are options of reads and writes. A namespace is the path of another directory or tier:
 * {@code NAME.`s3://bucket/prefix`.orders}. A table name with slashes contains path and topic:
 * {@code NAME.`s3://bucket/prefix/orders`}.
 */
public final class StratalogCatalog implements TableCatalog, SupportsNamespaces {
  private String name = "";
  private Map<String, String> options = Map.of();

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    Map<String, String> found = new LinkedHashMap<>();
    options.asCaseSensitiveMap().forEach((key, value) -> found.put(StratalogTable.CATALOG + key, value));
    this.options = Map.copyOf(found);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    check(namespace);
    return Arrays.stream(ask(at(namespace), "topics").fieldNames())
        .map(topic -> Identifier.of(namespace, topic))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, Map.of());
  }

  /** Load the table as of a version of its tier's manifest, or a time in ISO 8601. */
  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, Map.of("as_of", version));
  }

  /** Load the table as of a time in microseconds. */
  @Override
  public Table loadTable(Identifier ident, long timestamp) throws NoSuchTableException {
    return load(ident, Map.of("as_of", java.time.Instant.EPOCH.plus(timestamp, java.time.temporal.ChronoUnit.MICROS).toString()));
  }

  private Table load(Identifier ident, Map<String, String> more) throws NoSuchTableException {
    if (ident.namespace().length > 1) {
      throw new NoSuchTableException(ident);
    }
    Identifier found = split(ident);
    Map<String, String> place = at(found.namespace());
    place.putAll(more);
    Map<String, String> question = new HashMap<>(place);
    question.put("topic", found.name());
    StructType answer = ask(question, "topic");
    if (answer.isEmpty()) {
      throw new NoSuchTableException(ident);
    }
    return new StratalogTable(name + "." + String.join(".", ident.namespace()) + (ident.namespace().length > 0 ? "." : "")
        + ident.name(), found.name(), place, answer, properties(answer));
  }

  private static Map<String, String> properties(StructType answer) {
    Map<String, String> found = new LinkedHashMap<>();
    Metadata about = answer.fields()[0].metadata().getMetadata("stratalog.topic");
    for (String key : new String[] {"location", "topic.id", "partitions", "config"}) {
      found.put(key, about.getString(key));
    }
    found.put(PROP_PROVIDER, PythonSource.NAME);
    found.put(PROP_EXTERNAL, "true");
    return Map.copyOf(found);
  }

  /** Return {@code ident}. Divide a name PATH/TOPIC without a namespace into the namespace PATH and the name TOPIC. */
  private static Identifier split(Identifier ident) {
    int slash = ident.name().lastIndexOf('/');
    if (ident.namespace().length > 0 || slash < 0) {
      return ident;
    }
    return Identifier.of(new String[] {ident.name().substring(0, slash)}, ident.name().substring(slash + 1));
  }

  /** Return the options of a place. */
  private Map<String, String> at(String[] namespace) {
    Map<String, String> found = new HashMap<>(options);
    found.put(StratalogTable.CATALOG + "name", name);
    if (namespace.length > 0) {
      found.put("path", namespace[0]);
    }
    return found;
  }

  private static StructType ask(Map<String, String> place, String what) {
    Map<String, String> question = new HashMap<>(place);
    question.put("ask", what);
    return PythonSource.schema(question);
  }

  private static void check(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 1) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  /** Create a topic with the property {@code partitions} (1) and the topic settings among the other properties. */
  @Override
  public Table createTable(Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    check(ident.namespace());
    if (tableExists(ident)) {
      throw new TableAlreadyExistsException(ident);
    }
    if (partitions.length > 0) {
      throw new UnsupportedOperationException(
          "a topic is not partitioned by columns: use TBLPROPERTIES (partitions = '4') for its number of partitions");
    }
    Identifier found = split(ident);
    Map<String, String> question = at(found.namespace());
    question.put("topic", found.name());
    properties.forEach((key, value) -> question.put("property." + key, value));
    for (StructField field : schema.fields()) {
      question.put("column." + field.name(), field.dataType().simpleString());
    }
    ask(question, "create");
    try {
      return loadTable(ident);
    } catch (NoSuchTableException error) {
      throw new IllegalStateException("the topic was deleted while it was being created", error);
    }
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) {
    throw new UnsupportedOperationException("Spark does not change topics: use `stratalog topics`");
  }

  @Override
  public boolean dropTable(Identifier ident) {
    throw new UnsupportedOperationException("Spark does not delete topics: use `stratalog topics`");
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("a topic cannot be renamed");
  }

  @Override
  public String[][] listNamespaces() {
    return new String[0][];
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    check(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    check(namespace);
    String path = namespace.length > 0 ? namespace[0] : options.get(StratalogTable.CATALOG + "path");
    return path == null ? Map.of() : Map.of(SupportsNamespaces.PROP_LOCATION, path);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw namespaces();
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw namespaces();
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw namespaces();
  }

  private static UnsupportedOperationException namespaces() {
    return new UnsupportedOperationException("a namespace of this catalog is the path of a directory or a tier: use it, without creating it");
  }
}
