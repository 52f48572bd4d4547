#!/bin/bash
# tiered.sh WORK SEED OUT
# Fill a real Kafka 4.1.0 with tiered storage (LocalTieredStorage, metadata in a topic), let it upload and drop local
# segments, ask it for offsets, read the topics back with librdkafka, stop it in order, and copy everything to OUT.
# Needs what run.sh needs, and javac; ports 39092, 39093 of the loopback.
set -e
mkdir -p "$1" "$3"
WORK=$(cd "$1" && pwd) SEED=$2 OUT=$(cd "$3" && pwd)/kafka-4.1.0-tiered HERE=$(cd "$(dirname "$0")" && pwd) PYTHON=${PYTHON:-python3}
source "$HERE/common.sh"
libraries tiered
cd "$WORK"
rm -rf kt "$OUT"
mkdir -p kt/classes "$OUT/dumps"
cat > kt/server.properties <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:39093
listeners=PLAINTEXT://127.0.0.1:39092,CONTROLLER://127.0.0.1:39093
advertised.listeners=PLAINTEXT://127.0.0.1:39092
controller.listener.names=CONTROLLER
log.dirs=$WORK/kt/logs
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=500
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir=$WORK/kt/remote
rsm.config.delete.on.close=false
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=2
remote.log.manager.task.interval.ms=1000
P
JAVA=(java -Xmx1g -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$WORK/lib-tiered/*:$WORK/kt/classes")
BROKER=127.0.0.1:39092
javac -cp "$WORK/lib-tiered/*" -d kt/classes "$HERE/Offsets.java"
start() { setsid nohup "${JAVA[@]}" kafka.Kafka kt/server.properties >> kt/out.log 2>&1 & echo $! > kt/pid; wait_for 39092; sleep 4; }

CLUSTER=$("${JAVA[@]}" kafka.tools.StorageTool random-uuid 2> /dev/null | tail -1)
"${JAVA[@]}" kafka.tools.StorageTool format -t "$CLUSTER" -c kt/server.properties > /dev/null 2>&1
start; fill $BROKER "$SEED" tiered; sleep 8; stop kt
start; fill $BROKER "$((SEED + 1))" tiered-after-restart; sleep 6; stop kt
start; fill $BROKER "$((SEED + 2))" tiered-after-restart; fill $BROKER "$SEED" tiered-leave-open; sleep 6
fill $BROKER "$SEED" tiered-settle; sleep 12
fill $BROKER "$SEED" read "$OUT/expected"
"${JAVA[@]}" Offsets $BROKER 1700000000000 > "$OUT/offsets.json"
stop kt; cp -a --sparse=always kt/logs "$OUT/logs"; cp -a kt/remote "$OUT/remote"

for folder in "$OUT"/logs/tiered*-[0-9] "$OUT"/logs/__remote*-[0-9]; do
  log=$(basename "$folder")
  dump "$folder" "$(decoder "$log")" > "$OUT/dumps/local-$log.txt"
done
for folder in "$OUT"/remote/*/*; do
  [ -n "$(ls "$folder")" ] || { rmdir "$folder"; continue; }
  renamed=$(mktemp -d) # the tool wants names without the segment's id
  for file in "$folder"/*; do name=$(basename "$file"); cp "$file" "$renamed/${name:0:20}.${name##*.}"; done
  dump "$renamed" --deep-iteration > "$OUT/dumps/remote-$(basename "$folder").txt"
  rm -rf "$renamed"
done
