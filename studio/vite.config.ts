import { svelte } from "@sveltejs/vite-plugin-svelte";
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const BUILT = fileURLToPath(new URL("../src/legato/inspect/report/studio.html", import.meta.url));

/** One HTML file with script and style inside, which may run this script and no other, and ask nobody for anything. */
function oneFile(): Plugin {
  return {
    name: "one-file",
    apply: "build",
    enforce: "post",
    generateBundle(_, bundle) {
      const parts = Object.values(bundle);
      const script = parts.filter((part) => part.type === "chunk").map((part) => part.code).join("\n");
      const style = parts
        .filter((part) => part.type === "asset" && part.fileName.endsWith(".css"))
        .map((part) => String((part as { source: string | Uint8Array }).source))
        .join("\n");
      if (script.includes("</script") || style.includes("</style")) this.error("a closing tag inside of what is built");
      const hash = createHash("sha256").update(script).digest("base64");
      const policy =
        `default-src 'none'; script-src 'sha256-${hash}'; style-src 'unsafe-inline'; ` +
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'";
      const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="referrer" content="no-referrer">
<title>Legato</title>
<style>${style}</style>
</head>
<body>
<div id="studio"></div>
<!--report-->
<script type="module">${script}</script>
</body>
</html>
`;
      writeFileSync(BUILT, page);
    },
    closeBundle() {
      rmSync(fileURLToPath(new URL("./dist", import.meta.url)), { recursive: true, force: true });
    },
  };
}

export default defineConfig({
  plugins: [svelte(), oneFile()],
  build: {
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: { input: "src/main.ts", output: { format: "es" } },
  },
  test: { include: ["src/**/*.test.ts"] },
});
