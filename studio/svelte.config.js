import { vitePreprocess } from "@sveltejs/vite-plugin-svelte";

export default {
  preprocess: vitePreprocess(),
  // By what a style says and not by where its file lies: a build is the same wherever it is made.
  compilerOptions: { cssHash: ({ hash, css }) => `s${hash(css)}` },
};
