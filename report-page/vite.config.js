// Classic scripts: a page that is opened from a file cannot load modules. Vite builds one of them at a time.
const SCRIPTS = { explorer: "src/main.ts", viewer: "src/viewer/page.ts", "viewer-worker": "src/viewer/worker.ts" };
const name = process.env.SCRIPT ?? "explorer";

export default {
  build: {
    target: "es2022",
    outDir: process.env.OUT ?? "../src/forebay/snapshot/report/page",
    emptyOutDir: false,
    reportCompressedSize: false,
    lib: { entry: SCRIPTS[name], formats: ["iife"], name: "forebay", fileName: () => `${name}.js` },
  },
};
