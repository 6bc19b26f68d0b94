// Lean: what Pyodide holds and nobody needs any more, let go. A WebAssembly heap never shrinks, so what is freed early
// is room for what comes later; files are plain buffers of JavaScript's, which are given back.

/** Pyodide, as far as it is used here. @typedef {{runPython: (code: string) => any, FS: any}} Pyodide */

const INSTALLER = "micropip";
const FORGET = `
import gc, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "${INSTALLER}"]:
    del sys.modules[name]
gc.collect()
del gc, name, sys
`;

/** The installer's modules, when it has done its work. @param {Pyodide} pyodide */
export const forgetInstaller = (pyodide) => void pyodide.runPython(FORGET);

/** The installer's files, and those of dynamic libraries, when all that is needed has been imported. Python's sources
 * stay: modules may be imported late, and tracebacks show them.
 * @param {Pyodide} pyodide */
export function dropFiles(pyodide) {
  const { FS } = pyodide;
  /** @param {string} folder @param {(name: string) => boolean} isDropped */
  const visit = (folder, isDropped) => {
    for (const name of FS.readdir(folder)) {
      if (name === "." || name === "..") continue;
      const path = `${folder}/${name}`;
      if (FS.isDir(FS.stat(path).mode)) visit(path, isDropped);
      else if (isDropped(name)) FS.unlink(path);
    }
  };
  const site = pyodide.runPython("import site; site.getsitepackages()[0]");
  visit(site, (name) => name.endsWith(".so"));
  visit(`${site}/${INSTALLER}`, () => true);
}
