// Unpacks Chromium, the libraries that a machine may not have, and fonts into TMPDIR.
import chromium from "@sparticuz/chromium"

await chromium.executablePath()
