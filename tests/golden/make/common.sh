# Shared by run.sh and tiered.sh. HERE is this folder, WORK the scratch folder, PYTHON has confluent-kafka.

libraries() { # VERSION: Kafka's jars, from Maven
  local target="$WORK/lib-$1"
  [ -d "$target" ] || (mkdir -p "$WORK/pom-$1" && cp "$HERE/pom-$1.xml" "$WORK/pom-$1/pom.xml" && cd "$WORK/pom-$1" &&
    mvn -q -B dependency:copy-dependencies -DoutputDirectory="$target")
}

wait_for() { # PORT
  for _ in $(seq 120); do (echo > "/dev/tcp/127.0.0.1/$1") 2> /dev/null && return; sleep 0.5; done
  echo "port $1 never opened" >&2
  exit 1
}

stop() { # FOLDER with the broker's process id
  kill -TERM "$(cat "$1/pid")"
  while kill -0 "$(cat "$1/pid")" 2> /dev/null; do sleep 0.3; done
}

fill() { "$PYTHON" "$HERE/fill.py" "$@"; }

segment_files() { ls | grep -E '\.(log|index|timeindex|txnindex|snapshot)$' | tr '\n' ',' | sed 's/,$//'; }

dump() { # FOLDER OPTION: what Kafka's tool says of the files in a folder, by JAVA, without the folder's name
  (cd "$1" && "${JAVA[@]}" kafka.tools.DumpLogSegments "$2" --files "$(segment_files)" 2>&1 | sed "s#$1/##")
}

decoder() { # LOG: how its records are shown
  case $1 in
    __consumer*) echo --offsets-decoder ;;
    __transaction*) echo --transaction-log-decoder ;;
    __cluster*) echo --cluster-metadata-decoder ;;
    __remote*) echo --remote-log-metadata-decoder ;;
    *) echo --deep-iteration ;;
  esac
}
