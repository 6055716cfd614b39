import { defineConfig } from 'vite';

// Relative addresses: render.py serves the built page from a folder of its own choice.
export default defineConfig({
  base: './',
  build: { chunkSizeWarningLimit: 20_000, minify: false, reportCompressedSize: false },
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
  esbuild: { jsx: 'automatic' },
});
