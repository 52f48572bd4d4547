import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/**
 * A worker of a benchmark: it answers each line with one line, as harness/workers.py describes.
 *
 * @param <I> type of an input in memory
 */
abstract class LineWorker<I> {
    /** Jobs store their results here, so that the compiler cannot remove their work. */
    protected long sink;

    /** Prepares the input at a path. */
    abstract I load(Path path) throws Exception;

    /** Prepares this many calls of a job, outside of the measured time. */
    void before(String job, I input, int calls) throws Exception { }

    /** Does a job once. */
    abstract long call(String job, I input) throws Exception;

    /** Removes the files of {@link #before} and of the calls, outside of the measured time. */
    void after(String job, I input) throws Exception { }

    /** Does a job once, and returns its outcome in its canonical form; it is never measured. */
    abstract byte[] outcome(String job, I input) throws Exception;

    /** Answers until the standard input ends. */
    final void serve() throws Exception {
        Map<String, I> inputs = new HashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) {
            String answer;
            try {
                answer = answer(line.trim().split(" "), inputs);
            } catch (Exception | Error problem) {
                answer = "error " + problem.toString().replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
    }

    private String answer(String[] words, Map<String, I> inputs) throws Exception {
        switch (words[0]) {
            case "load":
                inputs.put(words[1], load(Path.of(words[2])));
                return "ok";
            case "sample":
                return sample(words[1], inputs.get(words[2]), Integer.parseInt(words[3]));
            case "outcome":
                Files.write(Path.of(words[3]), outcome(words[1], inputs.get(words[2])));
                return "ok";
            default:
                throw new IllegalArgumentException("not understood: " + words[0]);
        }
    }

    private String sample(String job, I input, int calls) throws Exception {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        before(job, input, calls);
        long cpu = system.getProcessCpuTime(), wall = System.nanoTime();
        for (int i = 0; i < calls; i++) {
            sink += call(job, input);
        }
        wall = System.nanoTime() - wall;
        cpu = system.getProcessCpuTime() - cpu;
        after(job, input);
        return wall + " " + cpu;
    }
}
