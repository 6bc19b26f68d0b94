// Lean: what Pyodide holds and nobody needs any more, let go. A WebAssembly heap never shrinks, so what is freed early
// is room for what comes later; files are plain buffers of JavaScript's, which are given back.

import { sitePackages } from "./python.js";

/** Pyodide, as far as it is used here. @typedef {{runPython: (code: string) => any, FS: any}} Pyodide */

/** The files of dynamic libraries, when all that is needed has been imported. Python's modules stay: they may be
 * imported late.
 * @param {Pyodide} pyodide */
export function dropFiles(pyodide) {
  const { FS } = pyodide;
  /** @param {string} folder */
  const visit = (folder) => {
    for (const name of FS.readdir(folder)) {
      if (name === "." || name === "..") continue;
      const path = `${folder}/${name}`;
      if (FS.isDir(FS.stat(path).mode)) visit(path);
      else if (name.endsWith(".so")) FS.unlink(path);
    }
  };
  visit(sitePackages(pyodide));
}
