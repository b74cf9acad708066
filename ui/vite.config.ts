import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

const SHIPPED = ["preact", "uplot", "@dagrejs/dagre", "@dagrejs/graphlib"];

/** The licences of what is in the bundle, beside it. */
function licences(): Plugin {
  const text = (name: string): string =>
    `${name}\n\n${readFileSync(new URL(`node_modules/${name}/LICENSE`, import.meta.url), "utf8").trim()}\n`;
  return {
    name: "licences",
    apply: "build",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "licences.txt", source: SHIPPED.map(text).join("\n\n") });
    },
  };
}

/** The one script that the parser waits for, behind all that it should not keep waiting. */
function themeLast(): Plugin {
  const theme = '<script src="./theme.js"></script>';
  return {
    name: "theme-last",
    apply: "build",
    transformIndexHtml: {
      order: "post",
      handler: (html) => html.replace(theme, "").replace("</head>", `${theme}\n  </head>`),
    },
  };
}

export default defineConfig({
  base: "./", // So that the same files work below any prefix of a bucket and at the root of a gateway.
  plugins: [licences(), themeLast()],
  build: {
    outDir: "../src/qo/ui/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // The policy of the page allows no data: addresses.
  },
});
