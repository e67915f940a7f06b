import java.util.concurrent.atomic.LongAdder;

/** Counts the rows that were added up in this process, and says so in its log: rows MILLISECONDS TOTAL. */
final class Meter {
    private static final int EACH_MS = 100;
    private static final LongAdder ROWS = new LongAdder();
    private static boolean started;

    private Meter() {}

    static void row() {
        ROWS.increment();
    }

    static synchronized void start() {
        if (started) return;
        started = true;
        Thread teller = new Thread(Meter::tell, "meter");
        teller.setDaemon(true);
        teller.start();
    }

    private static void tell() {
        try {
            while (true) {
                System.out.println("rows " + System.currentTimeMillis() + " " + ROWS.sum());
                Thread.sleep(EACH_MS);
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }
}
