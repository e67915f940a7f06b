import java.util.concurrent.atomic.LongAdder;

/** Counts the rows that this process has added up, and prints the count to its log: rows MILLISECONDS TOTAL. */
final class Meter {
    private static final int INTERVAL_MS = 100;
    private static final LongAdder ROWS = new LongAdder();
    private static boolean started;

    private Meter() {}

    static void row() {
        ROWS.increment();
    }

    static synchronized void start() {
        if (started) return;
        started = true;
        Thread printer = new Thread(Meter::printCounts, "meter");
        printer.setDaemon(true);
        printer.start();
    }

    private static void printCounts() {
        try {
            while (true) {
                System.out.println("rows " + System.currentTimeMillis() + " " + ROWS.sum());
                Thread.sleep(INTERVAL_MS);
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }
}
