import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["src/**/*.test.{ts,tsx}"],
    testTimeout: 60_000, // How long a test takes says more of the machine than of the code.
  },
});
