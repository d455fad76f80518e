// Package page tests the proxy's status page in a real browser, a headless Chromium. `make test`
// fetches Chromium from Debian without installing it. The package is a module of its own, so that
// the proxy does not depend on the browser's driver.
package page
