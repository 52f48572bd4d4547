#!/bin/bash
# run.sh WORK SEED OUT
# Fill a real Kafka 4.1.0 (KRaft) and a real Kafka 2.8.2 (ZooKeeper; the last line that still writes V0 and V1), read
# the topics back with librdkafka, stop the brokers in order (and once by kill -9), copy their directories to OUT, and
# dump every file with Kafka's own tool.
# Needs Java 17, Maven, and a Python with confluent-kafka (PYTHON=...); ports 19092, 19093, 29092, 12181 of the loopback.
set -e
mkdir -p "$1" "$3"
WORK=$(cd "$1" && pwd) SEED=$2 OUT=$(cd "$3" && pwd) HERE=$(cd "$(dirname "$0")" && pwd) PYTHON=${PYTHON:-python3}
source "$HERE/common.sh"
libraries 4.1.0
libraries 2.8.2
cd "$WORK"
rm -rf k4 k2 "$OUT"/kafka-4.1.0 "$OUT"/kafka-4.1.0-crashed "$OUT"/kafka-2.8.2
mkdir -p k4 k2 "$OUT"/kafka-4.1.0/dumps "$OUT"/kafka-2.8.2/dumps "$OUT"/kafka-4.1.0-crashed/{logs,recovered}
cat > common.properties <<P
log.retention.ms=-1
log.cleaner.backoff.ms=1000
log.retention.check.interval.ms=2000
offsets.topic.replication.factor=1
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
group.initial.rebalance.delay.ms=0
P
cat - common.properties > k4/server.properties <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:19093
listeners=PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093
advertised.listeners=PLAINTEXT://127.0.0.1:19092
controller.listener.names=CONTROLLER
log.dirs=$WORK/k4/logs
log.initial.task.delay.ms=500
P
cat - common.properties > k2/server.properties <<P
broker.id=1
listeners=PLAINTEXT://127.0.0.1:29092
zookeeper.connect=127.0.0.1:12181
log.dirs=$WORK/k2/logs
P
cat > k2/zookeeper.properties <<P
dataDir=$WORK/k2/zookeeper
clientPort=12181
clientPortAddress=127.0.0.1
admin.enableServer=false
P
QUIET=(-Xmx1g -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn)
JAVA=(java "${QUIET[@]}" -cp "$WORK/lib-4.1.0/*")
JAVA_OLD=(java "${QUIET[@]}" -cp "$WORK/lib-2.8.2/*")
NEW=127.0.0.1:19092 OLD=127.0.0.1:29092
start() { setsid nohup "${JAVA[@]}" kafka.Kafka k4/server.properties >> k4/out.log 2>&1 & echo $! > k4/pid; wait_for 19092; sleep 2; }

# Kafka 4.1.0: filled, restarted twice for more leader epochs, read, stopped
CLUSTER=$("${JAVA[@]}" kafka.tools.StorageTool random-uuid 2> /dev/null | tail -1)
"${JAVA[@]}" kafka.tools.StorageTool format -t "$CLUSTER" -c k4/server.properties > /dev/null 2>&1
start; fill $NEW "$SEED" kraft; sleep 12; stop k4
start; fill $NEW "$((SEED + 1))" after-restart; stop k4
start; fill $NEW "$((SEED + 2))" after-restart; fill $NEW "$SEED" leave-open
fill $NEW "$SEED" read "$OUT/kafka-4.1.0/expected"
stop k4; cp -a k4/logs "$OUT/kafka-4.1.0/logs"

# the same, killed just after a producer wrote, and what it makes of that itself
CRASHED=$OUT/kafka-4.1.0-crashed
start; fill $NEW "$SEED" crash "$(cat k4/pid)" || true; sleep 1
cp -a --sparse=always k4/logs/{crash-0,txn-0,txn-open-0,*checkpoint,meta.properties} "$CRASHED/logs/"
start; fill $NEW "$SEED" read "$CRASHED/expected" crash txn txn-open; stop k4
for topic in crash txn txn-open; do cp -a --sparse=always "k4/logs/$topic-0" "$CRASHED/recovered/"; done

# Kafka 2.8.2
setsid nohup "${JAVA_OLD[@]}" org.apache.zookeeper.server.quorum.QuorumPeerMain k2/zookeeper.properties > k2/zookeeper.log 2>&1 &
ZOOKEEPER=$!; wait_for 12181; sleep 2
setsid nohup "${JAVA_OLD[@]}" kafka.Kafka k2/server.properties > k2/out.log 2>&1 & echo $! > k2/pid; wait_for 29092; sleep 3
fill $OLD "$SEED" zookeeper; sleep 10
fill $OLD "$SEED" read "$OUT/kafka-2.8.2/expected"
stop k2; kill "$ZOOKEEPER"; cp -a k2/logs "$OUT/kafka-2.8.2/logs"

for version in kafka-4.1.0 kafka-2.8.2; do
  for folder in "$OUT/$version"/logs/*-[0-9]*; do
    log=$(basename "$folder")
    dump "$folder" "$(decoder "$log")" > "$OUT/$version/dumps/$log.txt"
  done
done
