// One classic script: a page that is opened from a file cannot load modules.
export default {
  build: {
    target: "es2022",
    outDir: process.env.OUT ?? "../src/forebay/snapshot/report/page",
    emptyOutDir: false,
    reportCompressedSize: false,
    lib: { entry: "src/main.ts", formats: ["iife"], name: "explorer", fileName: () => "explorer.js" },
  },
};
