/** What goes wrong in the page, for tests and for programs that open it. */

export function noteErrors(): void {
  const { body } = document;
  addEventListener("error", (event) => (body.dataset.error = event.message));
  addEventListener("unhandledrejection", (event) => (body.dataset.error = String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => (body.dataset.error = `blocked: ${event.violatedDirective}`));
}
