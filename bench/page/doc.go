// Package page tests the proxy's status page in a real browser, a headless Chromium, which the
// Makefile fetches from Debian without installing it. With -tags verify, axe-core (MPL-2.0), which npm
// fetches, checks the page against WCAG, and further tests use the page. No other part of the project
// contains axe-core. The package is a separate module, so that the proxy does not depend on the
// browser's driver.
package page
