package stratalog.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Collects columns, predicates and counts that a query pushes down, and passes them to the source in Python as options.
 *
 * <p>The source evaluates a pushed predicate for each row. Spark does not evaluate it again.
 */
final class StratalogScanBuilder
    implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns, SupportsPushDownAggregates {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Set<String> COMPARED = Set.of("partition", "offset", "timestamp", "topic");
  private static final Set<String> GROUPED = Set.of("topic", "partition");
  private static final Set<String> NEVER_NULL = Set.of("topic", "partition", "offset");
  private static final Map<String, String> FLIPPED = Map.of("=", "=", "<", ">", "<=", ">=", ">", "<", ">=", "<=");

  private final String name;
  private final Map<String, String> options;
  private final StructType schema;
  private final List<Object> trees = new ArrayList<>();
  private final List<Predicate> pushed = new ArrayList<>();
  private StructType columns;
  private boolean counts;

  StratalogScanBuilder(String name, StructType schema, Map<String, String> options) {
    this.name = name;
    this.schema = schema;
    this.options = options;
    this.columns = schema;
  }

  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    List<Predicate> others = new ArrayList<>();
    for (Predicate predicate : predicates) {
      Object tree = tree(predicate);
      if (isAlwaysTrue(predicate)) {
        pushed.add(predicate);
      } else if (tree == null) {
        others.add(predicate);
      } else {
        trees.add(tree);
        pushed.add(predicate);
      }
    }
    return others.toArray(Predicate[]::new);
  }

  /** Return true for the conditions that Spark derives from comparisons of columns that have no nulls. */
  private static boolean isAlwaysTrue(Predicate predicate) {
    return predicate.name().equals("IS_NOT_NULL") && NEVER_NULL.contains(String.valueOf(column(predicate.children()[0])));
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed.toArray(Predicate[]::new);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    StructType found = new StructType();
    for (Expression group : aggregation.groupByExpressions()) {
      String column = column(group);
      if (column == null || !GROUPED.contains(column)) {
        return false;
      }
      found = found.add(schema.apply(column));
    }
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      if (!isCount(function)) {
        return false;
      }
      // the metadata may hold the options of a table
      found = found.add("count" + found.size(), DataTypes.LongType, true, schema.fields()[0].metadata());
    }
    columns = found;
    counts = true;
    return true;
  }

  private static boolean isCount(AggregateFunc function) {
    if (function instanceof CountStar) {
      return true;
    }
    return function instanceof Count count && !count.isDistinct() && NEVER_NULL.contains(String.valueOf(column(count.column())));
  }

  @Override
  public void pruneColumns(StructType required) {
    if (!counts) {
      // a batch of Arrow without columns has no number of rows
      columns = required.isEmpty() ? new StructType(new StructField[] {smallest()}) : required;
    }
  }

  private StructField smallest() {
    List<String> names = Arrays.asList(schema.fieldNames());
    return names.contains("partition") ? schema.apply("partition") : schema.fields()[0];
  }

  @Override
  public Scan build() {
    if (!trees.isEmpty()) {
      options.put("pushedFilter", json(trees.size() == 1 ? trees.get(0) : node("and", trees)));
    }
    if (counts) {
      options.put("pushedCount", "true");
    }
    return new StratalogScan(name, columns, Map.copyOf(options));
  }

  /** Return a predicate as lists of names and values, or null if the source cannot evaluate it. */
  private static Object tree(Predicate predicate) {
    Expression[] children = predicate.children();
    switch (predicate.name()) {
      case "AND", "OR" -> {
        List<Object> parts = new ArrayList<>();
        for (Expression child : children) {
          Object part = child instanceof Predicate inner ? tree(inner) : null;
          if (part == null) {
            return null;
          }
          parts.add(part);
        }
        return node(predicate.name().toLowerCase(java.util.Locale.ROOT), parts);
      }
      case "IS_NOT_NULL" -> {
        String column = column(children[0]);
        return column == null || !COMPARED.contains(column) ? null : List.of("notnull", column);
      }
      case "IN" -> {
        List<Object> values = new ArrayList<>(List.of("in"));
        values.add(column(children[0]));
        for (int index = 1; index < children.length; index++) {
          values.add(value(children[index]));
        }
        return values.contains(null) || !COMPARED.contains(String.valueOf(values.get(1))) ? null : values;
      }
      case "=", "<", "<=", ">", ">=" -> {
        boolean flipped = children[0] instanceof Literal<?>;
        String column = column(children[flipped ? 1 : 0]);
        Object value = value(children[flipped ? 0 : 1]);
        if (column == null || value == null || !COMPARED.contains(column)) {
          return null;
        }
        return List.of(flipped ? FLIPPED.get(predicate.name()) : predicate.name(), column, value);
      }
      default -> {
        return null;
      }
    }
  }

  private static List<Object> node(String operator, List<Object> parts) {
    List<Object> found = new ArrayList<>(List.of(operator));
    found.addAll(parts);
    return found;
  }

  private static String column(Expression expression) {
    if (expression instanceof NamedReference reference && reference.fieldNames().length == 1) {
      return reference.fieldNames()[0];
    }
    return null;
  }

  /** Return a value that JSON represents exactly, else null. Times are microseconds. */
  private static Object value(Expression expression) {
    if (!(expression instanceof Literal<?> literal)) {
      return null;
    }
    Object value = literal.value();
    if (value != null && DataTypes.StringType.equals(literal.dataType())) {
      return value.toString();
    }
    return value instanceof Integer || value instanceof Long ? value : null;
  }

  private static String json(Object tree) {
    try {
      return JSON.writeValueAsString(tree);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }
}
