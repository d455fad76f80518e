// Package page tests the proxy's status page in a real browser, a headless Chromium. `make test`
// fetches Chromium from Debian without installing it, and axe-core with npm. Axe-core (MPL-2.0)
// checks the page against WCAG. No other part of the project contains axe-core. The package is a
// separate module, so that the proxy does not depend on the browser's driver.
package page
