package stratalog.spark;

import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * Session extension: {@code spark.sql.extensions=stratalog.spark.StratalogExtensions}.
 *
 * <p>It lets {@code format("stratalog")} and tables {@code USING stratalog} push down columns, predicates and counts, and adds the
 * table-valued function {@code stratalog(PATH, TOPIC [, OPTION, VALUE] ...)}.
 */
public final class StratalogExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPostHocResolutionRule(function(session -> new PushDown()));
    extensions.injectTableFunction(
        new Tuple3<>(
            new FunctionIdentifier(PythonSource.NAME),
            new ExpressionInfo(StratalogExtensions.class.getName(), PythonSource.NAME),
            function(StratalogExtensions::relation)));
    return BoxedUnit.UNIT;
  }

  private static <A, B> Function1<A, B> function(java.util.function.Function<A, B> body) {
    return new AbstractFunction1<>() {
      @Override
      public B apply(A argument) {
        return body.apply(argument);
      }
    };
  }

  /** Return the relation of the table-valued function: a table of the catalog of the same name. */
  private static LogicalPlan relation(Seq<Expression> arguments) {
    List<String> texts = new ArrayList<>();
    for (Expression argument : CollectionConverters.asJava(arguments)) {
      if (!argument.foldable()) {
        throw usage();
      }
      texts.add(String.valueOf(argument.eval(null)));
    }
    if (texts.size() < 2 || texts.size() % 2 == 1) {
      throw usage();
    }
    Map<String, String> options = new HashMap<>();
    for (int index = 2; index < texts.size(); index += 2) {
      options.put(texts.get(index), texts.get(index + 1));
    }
    List<String> parts = List.of(PythonSource.NAME, texts.get(0), texts.get(1));
    return new UnresolvedRelation(
        CollectionConverters.asScala(parts).toList(), new CaseInsensitiveStringMap(options), false);
  }

  private static IllegalArgumentException usage() {
    return new IllegalArgumentException(
        "stratalog(PATH, TOPIC [, OPTION, VALUE] ...) takes constants: the place, a topic, and pairs of option and value");
  }

  /** Replaces the table of the source in Python by a table that supports pushdown. */
  private static final class PushDown extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.resolveOperators(
          new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
              return node instanceof DataSourceV2Relation relation
                  && relation.table() instanceof PythonTable table
                  && PythonSource.NAME.equals(table.name());
            }

            @Override
            public <A extends LogicalPlan, B> B applyOrElse(A node, Function1<A, B> otherwise) {
              if (!isDefinedAt(node)) {
                return otherwise.apply(node);
              }
              @SuppressWarnings("unchecked") // a partial function of plans
              B found = (B) pushing((DataSourceV2Relation) node);
              return found;
            }
          });
    }

    @SuppressWarnings("deprecation") // the schema with its metadata, which hold the options of a table
    private static DataSourceV2Relation pushing(DataSourceV2Relation relation) {
      Table table = relation.table();
      return with(relation, new StratalogTable(table.name(), null, Map.of(), table.schema(), table.properties()));
    }

    /** Return a copy with another table. Spark 4.1 added a field to the class, so reflection finds the constructor. */
    private static DataSourceV2Relation with(DataSourceV2Relation relation, Table table) {
      Constructor<?> constructor = relation.getClass().getConstructors()[0];
      Object[] fields = new Object[relation.productArity()];
      for (int index = 0; index < fields.length; index++) {
        fields[index] = relation.productElement(index);
      }
      fields[0] = table;
      try {
        return (DataSourceV2Relation) constructor.newInstance(fields);
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException("this release of Spark is not supported: remove StratalogExtensions from spark.sql.extensions", error);
      }
    }
  }
}
